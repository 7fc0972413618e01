"""The start of ranks that MPI lets outlive others: in each, one is lost in the middle of it.

Without the native library, and so without TensorFlow.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi4py import MPI

from ringar.errors import PeerLostError
from ringar.job import log, mpi, mpi_host

FIRST_RANK = MPI.COMM_WORLD.Get_rank()
#: Who is lost in which step, and whether before it or behind it.
FAULTS = [
    (5, "_wait_for_all_ranks", True),
    (4, "_own_communicator", False),
    (3, "agree_at_the_end", True),
    (2, "share_memory", True),
]
SECONDS = 20


def agree_at_the_end(communicator: MPI.Intracomm) -> None:
    mpi.agree(communicator, None)


def die_in(step: Callable[..., Any], before: bool) -> Callable[..., Any]:
    @functools.wraps(step)
    def dies(*args: object) -> None:
        if not before:
            step(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    return dies


def start() -> mpi.Place:
    """As `ringar.init`, which meets again after a loss."""
    while True:
        place = None
        try:
            place = mpi.join(SECONDS)
            steps["agree_at_the_end"](place.communicator)
        except PeerLostError:
            if place:
                mpi.leave(place, failed=False)
        else:
            return place


log.set_level({})
steps = {"agree_at_the_end": agree_at_the_end}
sizes = []
for who, step, before in FAULTS:
    if who == FIRST_RANK and step in steps:
        steps[step] = die_in(steps[step], before)
    elif who == FIRST_RANK:
        module = mpi_host if hasattr(mpi_host, step) else mpi
        setattr(module, step, die_in(getattr(module, step), before))
    place = start()
    sizes.append(place.size)
    mpi.leave(place, failed=False)
opened = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
left = sum(os.readlink(fd).startswith("/dev/shm/ringar-") for fd in opened if fd.exists())
print(f"{FIRST_RANK}: {sizes} {left}", flush=True)
os._exit(0)  # MPI_Finalize may wait for those that are lost
