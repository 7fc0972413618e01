"""The libraries that a job can use: answers to Horovod's `*_built` and `*_enabled`.

Horovod's libraries are compiled with MPI, NCCL and so on, or without them. ringar's one library
opens MPI, CUDA and NCCL when it needs them. So `*_built` tells whether something is installed here.
"""

from __future__ import annotations

import ctypes
import importlib.util

from ringar.horovod.common.exceptions import UninitializedError
from ringar.job import mpi, nvidia, place


def mpi_threads_supported() -> bool:
    """Return whether MPI lets several threads call it, in a job whose link is MPI.

    Raises:
        ValueError: the job does not use MPI, or before `init`.
    """
    if not place.is_initialized():
        raise UninitializedError("mpi_threads_supported: call init() first")
    if not mpi_enabled():
        raise ValueError("mpi_threads_supported: the ranks of this job do not use MPI")
    from mpi4py import MPI

    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


def mpi_enabled() -> bool:
    """Return whether MPI connects the ranks of this job."""
    return mpi.is_in_job()


def mpi_built() -> bool:
    """Return whether mpi4py is here, through which ringar reaches MPI."""
    return importlib.util.find_spec("mpi4py") is not None


def gloo_enabled() -> bool:
    """Return False: ringar's own TCP link takes Gloo's place."""
    return False


def gloo_built() -> bool:
    """Return False: ringar's own TCP link takes Gloo's place."""
    return False


def nccl_built() -> int:
    """Return the version of the NCCL that ringar would use, as a number; 0 if there is none."""
    library = _opened(nvidia.nccl_library() or "libnccl.so.2")
    version = ctypes.c_int(0)
    if library is None or library.ncclGetVersion(ctypes.byref(version)) != 0:
        return 0
    return version.value


def ddl_built() -> bool:
    """Return False: ringar has no DDL."""
    return False


def ccl_built() -> bool:
    """Return False: ringar has no oneCCL."""
    return False


def cuda_built() -> bool:
    """Return whether a CUDA driver is here."""
    return _opened(nvidia.cuda_library() or "libcuda.so.1") is not None


def rocm_built() -> bool:
    """Return False: ringar has no ROCm."""
    return False


def _opened(library: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(library)
    except OSError:
        return None
