"""The resources that ranks of one host share in a job that MPI has started: memory and CPUs."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from ringar import errors
from ringar.job import threads

if TYPE_CHECKING:
    from mpi4py import MPI


def share_memory(
    local: MPI.Intracomm, prefix: str, undo: contextlib.ExitStack
) -> tuple[int, errors.UnsupportedError | None]:
    """Open a file in /dev/shm on all ranks of this host, then remove its name; note it in `undo`.

    Returns:
        The file descriptor, -1 for the only rank of a host; and the error, if a rank of this host
        has one.
    """
    if local.Get_size() == 1:
        return -1, None
    first = local.Get_rank() == 0
    path = f"/dev/shm/ringar-{os.getuid()}-{secrets.token_hex(8)}"
    trouble = ""
    fd = -1
    try:
        if first:
            undo.callback(Path(path).unlink, missing_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        trouble = str(error)
    path = local.bcast(path if not trouble else "")
    try:
        if path and not first:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        trouble = str(error)
    if fd >= 0:
        undo.callback(os.close, fd)
    troubles = [text for text in local.allgather(trouble) if text]
    if first and path and fd >= 0:
        os.unlink(path)
    if not troubles:
        return fd, None
    return fd, errors.UnsupportedError(
        f"{prefix}expected the ranks of this host ({socket.gethostname()}) to share /dev/shm, "
        f"received: {troubles[0]}. Containers of one host need a common /dev/shm (docker: "
        "--ipc=host), or one rank each."
    )


def publish_bound_cpus(local: MPI.Intracomm) -> None:
    """Set RINGAR_BOUND_CPUS if mpirun or srun has bound the ranks of this host to CPUs."""
    cpu_set = frozenset(os.sched_getaffinity(0))
    cpu_sets = local.allgather(cpu_set)
    if any(cpus != cpu_set for cpus in cpu_sets):
        sharing = sum(cpus == cpu_set for cpus in cpu_sets)
        os.environ.setdefault(threads.BOUND_CPUS_VARIABLE, f"{len(cpu_set) / sharing:g}")
