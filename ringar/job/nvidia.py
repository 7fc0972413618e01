"""Discovery of NVIDIA's driver, libraries and GPUs, without opening any of them.

The launcher uses this module, too: it imports neither TensorFlow nor CuPy, and starts no CUDA.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path

CUDA_LIBRARY_VARIABLE = "RINGAR_CUDA_LIBRARY"
NCCL_LIBRARY_VARIABLE = "RINGAR_NCCL_LIBRARY"

#: The GPUs that a process may use, in CUDA's form: numbers or UUIDs, separated by commas.
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"

_DRIVER = Path("/proc/driver/nvidia")
_DEVICES = Path("/dev")
_OPEN_FILES = Path("/proc/self/fd")
_ENTRY = re.compile(r"\d+|(GPU|MIG)-\S+")


def cuda_library(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the file of the CUDA driver to open; None for the system's libcuda.so.1.

    The file need not exist: the first collective on a GPU opens it, and reports if it is missing.
    """
    return environ.get(CUDA_LIBRARY_VARIABLE) or None


def nccl_library(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the file of NCCL to open; None for the libnccl.so.2 of the system's loader.

    RINGAR_NCCL_LIBRARY names the file, which need not exist. The default is the file of the PyPI
    packages nvidia-nccl-cu12 and nvidia-nccl-cu13, which use the same path.
    """
    if path := environ.get(NCCL_LIBRARY_VARIABLE):
        return path
    spec = importlib.util.find_spec("nvidia")  # a namespace that several packages share
    for folder in (spec.submodule_search_locations if spec else None) or ():
        if (library := Path(folder) / "nccl/lib/libnccl.so.2").is_file():
            return str(library)
    return None


def has_driver() -> bool:
    """Return whether the kernel has loaded NVIDIA's driver, and this process can reach it."""
    return _DRIVER.is_dir() or (_DEVICES / "nvidiactl").exists()


def is_in_use() -> bool:
    """Return whether this process has started CUDA, which then holds files of the driver open."""
    prefix = f"{_DEVICES}/nvidia"
    for file in _OPEN_FILES.glob("*"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(file).startswith(prefix):
                return True
    return False


def visible_gpus(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the GPUs that this environment allows, as CUDA_VISIBLE_DEVICES names them.

    As in CUDA, the list ends before the first entry that names no GPU: a scheduler hides all GPUs
    with "", "-1" or "NoDevFiles". Without the variable, GPUs are numbered from 0.
    """
    text = environ.get(VISIBLE_VARIABLE)
    if text is None:
        return tuple(str(number) for number in range(_count()))
    entries = []
    for entry in map(str.strip, text.split(",")):
        if not _ENTRY.fullmatch(entry):
            break
        entries.append(entry)
    return tuple(entries)


def _count() -> int:
    """Return the number of GPUs that this process can reach."""
    folders = sum(1 for _ in _DRIVER.glob("gpus/*"))
    files = sum(1 for path in _DEVICES.glob("nvidia[0-9]*") if path.name[6:].isdecimal())
    # A container may have only the files of its own GPUs, but the folders of all. The first use of
    # CUDA makes the files, so all of them may be missing.
    return min(folders, files) if folders and files else folders or files
