"""Joining a job that MPI has started: who is where, the hosts' shared memory, and the link.

mpi4py does all of it, once, in `ringar.init()`. After that ringar's own messages travel on a
communicator of their own; the user's code may use MPI as it likes at the same time, provided that
MPI was initialized with MPI_THREAD_MULTIPLE, as mpi4py does unless it is told otherwise.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
import socket
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ringar import cost_model, errors, threads
from ringar.version import __version__

LAUNCHER_VARIABLE = "RINGAR_LAUNCHER"
"""`mpi` where ringarrun has started the ranks through MPI."""

JOB_SIZE_VARIABLE = "RINGAR_JOB_SIZE"
"""How many ranks ringarrun has started."""

ALGORITHM_VARIABLE = "RINGAR_ALGORITHM"

#: How launchers tell a rank of the size of its job, and who does.
_SIZE_VARIABLES = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "an mpirun or srun that speaks PMI, as MPICH does",
    "SLURM_STEP_NUM_TASKS": "srun",
}

#: Ranks lay out memory and choose algorithms by these.
_MUST_AGREE = ("RINGAR_TUNING", ALGORITHM_VARIABLE)

_TAG = 32_766  # MPI promises tags up to 32,767


@dataclasses.dataclass(frozen=True)
class Place:
    """Where this rank is in the job, and how it reaches the others.

    Attributes:
        hosts: of each rank of the job, the number of its host.
        arena_fd: memory that the ranks of this host share; -1 for one rank.
        link_library: the library that speaks the ABI of this process' MPI.
        link_communicator: the address of the MPI_Comm that it is opened with.
        recursive_doubling_bytes: see `ringar.cost_model.table`.
    """

    rank: int
    hosts: list[int]
    arena_fd: int
    link_library: Path
    link_communicator: int
    recursive_doubling_bytes: list[int]
    communicator: Any

    @property
    def size(self) -> int:
        """How many ranks the job has."""
        return len(self.hosts)

    def local(self, rank: int) -> int:
        """The number of a rank on its host."""
        return self.hosts[:rank].count(self.hosts[rank])

    @property
    def local_size(self) -> int:
        """How many ranks run on this host."""
        return self.hosts.count(self.hosts[self.rank])

    @property
    def cross(self) -> list[int]:
        """The hosts that have a rank of this local rank, in order."""
        mine = self.local(self.rank)
        return sorted({host for host in self.hosts if self.hosts.count(host) > mine})


def has_started_us(environ: Mapping[str, str]) -> bool:
    """Whether this process is a rank that mpirun, mpiexec or srun has started."""
    if environ.get(LAUNCHER_VARIABLE) == "mpi" or launched_size(environ) > 1:
        return True
    # mpirun -np 1, or a script that has gone through MPI by itself.
    mpi = sys.modules.get("mpi4py.MPI")
    return bool(mpi and mpi.Is_initialized() and mpi.COMM_WORLD.Get_size() > 1)


def launched_size(environ: Mapping[str, str]) -> int:
    """How many ranks were started, as far as the environment tells; else 1."""
    for variable in (JOB_SIZE_VARIABLE, *_SIZE_VARIABLES):
        if environ.get(variable, "").isdigit():
            return int(environ[variable])
    return 1


def join(start_timeout: float) -> Place:
    """Finds the other ranks. Collective over all ranks of MPI's world.

    Args:
        start_timeout: seconds to wait for them.

    Raises:
        DeadlineError: a rank did not come; the message names it.
        MismatchError: the ranks differ in ringar's version or in what they are to do, or MPI sees
            other ranks than were started.
        UnsupportedError: there is no mpi4py, or its MPI may not be used from ringar's thread.
    """
    mpi = _mpi4py()
    world = mpi.COMM_WORLD
    who = f"rank {world.Get_rank()} | "
    _check_world(mpi, os.environ, who)
    _meet(mpi, world, start_timeout, who)
    _compare(world, who)
    local = world.Split_type(mpi.COMM_TYPE_SHARED, key=world.Get_rank())
    firsts = world.allgather(local.bcast(world.Get_rank()))
    numbers = {first: number for number, first in enumerate(sorted(set(firsts)))}
    hosts = [numbers[first] for first in firsts]
    arena_fd = _share_memory(local, hosts, who)
    _tell_of_bound_cpus(local)
    local.Free()
    communicator = world.Dup()
    return Place(
        rank=world.Get_rank(),
        hosts=hosts,
        arena_fd=arena_fd,
        link_library=_link_library(mpi),
        link_communicator=mpi._addressof(communicator),
        recursive_doubling_bytes=_table(communicator, hosts),
        communicator=communicator,
    )


def leave(place: Place, *, failed: bool) -> None:
    """Gives back what `join` has made, after the native library has let go of it.

    Args:
        place: what `join` has returned.
        failed: whether a collective has failed for good. Then messages may still be under way.
    """
    global _has_failed
    _has_failed = _has_failed or failed
    if not failed:
        place.communicator.Free()


_has_failed = False


def end_process_if_failed() -> None:
    """Ends the process with code 1 after a failed job, where mpi4py would call MPI_Finalize.

    That waits for all ranks, also for those that never come. To be called when nothing else is left
    to do.
    """
    if _has_failed:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _mpi4py() -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise errors.UnsupportedError(
            "expected mpi4py in a job that MPI has started, with the MPI of its mpirun or srun; "
            f"received: {error}. Install it on every host: pip install 'ringar[mpi]'"
        ) from error
    return MPI


def _library_name(mpi: Any) -> str:
    return str(mpi.Get_library_version()).split("\n")[0].split(",")[0].strip()


def _check_world(mpi: Any, environ: Mapping[str, str], who: str) -> None:
    started, seen = launched_size(environ), mpi.COMM_WORLD.Get_size()
    if started not in (1, seen):
        launchers = [name for variable, name in _SIZE_VARIABLES.items() if variable in environ]
        raise errors.MismatchError(
            f"{who}expected {started} ranks, as many as were started, but mpi4py's MPI "
            f"({_library_name(mpi)}) sees {seen}. They were started by "
            f"{launchers[0] if launchers else 'a launcher of another MPI'}: use the mpirun that "
            "belongs to mpi4py's MPI, or srun with the --mpi= plugin that it speaks "
            "(srun --mpi=list)."
        )
    level = mpi.Query_thread()
    if level < mpi.THREAD_SERIALIZED:
        raise errors.UnsupportedError(
            f"{who}expected MPI to be initialized with MPI_THREAD_MULTIPLE, received level {level} "
            "(0: single, 1: funneled). ringar sends from a thread of its own. Leave the "
            'initialization to mpi4py, or set mpi4py.rc.thread_level = "multiple" before it.'
        )
    if level < mpi.THREAD_MULTIPLE:
        warnings.warn(
            f"{who}MPI was initialized with MPI_THREAD_SERIALIZED: between ringar.init() and "
            "ringar.shutdown() no other code of this process may call MPI while a collective of "
            "ringar runs. With MPI_THREAD_MULTIPLE it may.",
            stacklevel=2,
        )


def _meet(mpi: Any, world: Any, timeout: float, who: str) -> None:
    """Waits until all ranks are here; a barrier of MPI would wait for ever, and name nobody."""
    rank, size = world.Get_rank(), world.Get_size()
    verdict = np.zeros(size, np.int8)  # 1: absent
    deadline = time.monotonic() + timeout
    if rank == 0:
        words = np.zeros((size, 1), np.int8)
        coming = [world.Irecv(words[r], r, _TAG) for r in range(1, size)]
        while not mpi.Request.Testall(coming) and time.monotonic() < deadline:
            time.sleep(0.0005)
        for r, request in enumerate(coming, start=1):
            if request and not request.Test():
                verdict[r] = 1
                request.Cancel()
                request.Free()
        sent = [world.Isend(verdict, r, _TAG) for r in range(1, size) if not verdict[r]]
        mpi.Request.Waitall(sent)
    else:
        world.Isend(np.zeros(1, np.int8), 0, _TAG).Free()
        answer = world.Irecv(verdict, 0, _TAG)
        # Rank 0 may have come later than this one, and then waits as long.
        while not answer.Test():
            if time.monotonic() > deadline + 5:
                answer.Cancel()
                answer.Free()
                verdict[0] = 1
                break
            time.sleep(0.0005)
    absent = np.flatnonzero(verdict).tolist()
    if absent:
        raise errors.DeadlineError(
            f"{who}expected all {size} ranks in ringar.init(), but after {timeout:.3g} s still "
            f"waiting for rank {', '.join(map(str, absent))}. Does every rank call ringar.init()? "
            "A slow start needs a longer --start-timeout."
        )


def _compare(world: Any, who: str) -> None:
    mine = {"ringar": __version__, **{name: os.environ.get(name) for name in _MUST_AGREE}}
    everyone = world.allgather((socket.gethostname(), mine))
    for name in mine:
        values = [f"rank {r} on {host}: {its[name]}" for r, (host, its) in enumerate(everyone)]
        if len({its[name] for _, its in everyone}) > 1:
            raise errors.MismatchError(
                f"{who}expected the same {name} on every rank, received\n  " + "\n  ".join(values)
            )


def _share_memory(local: Any, hosts: list[int], who: str) -> int:
    """A file in /dev/shm that all ranks of this host have open, without a name from then on.

    It stays open as long as the process lives: its locks tell the others that it does.
    """
    if local.Get_size() == 1:
        return -1
    first = local.Get_rank() == 0
    path = f"/dev/shm/ringar-{os.getuid()}-{secrets.token_hex(8)}"
    trouble = ""
    fd = -1
    try:
        if first:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        trouble = str(error)
    path = local.bcast(path if not trouble else "")
    try:
        if path and not first:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        trouble = str(error)
    troubles = [text for text in local.allgather(trouble) if text]
    if first and path and fd >= 0:
        os.unlink(path)
    if troubles:
        raise errors.UnsupportedError(
            f"{who}expected the ranks of this host ({socket.gethostname()}) to share /dev/shm, "
            f"received: {troubles[0]}. Containers of one host need a common /dev/shm (docker: "
            "--ipc=host), or one rank each."
        )
    return fd


def _tell_of_bound_cpus(local: Any) -> None:
    """Finds out whether mpirun or srun has bound the ranks of this host to CPUs of their own."""
    mine = frozenset(os.sched_getaffinity(0))
    others = local.allgather(mine)
    if any(its != mine for its in others):
        sharing = sum(its == mine for its in others)
        os.environ.setdefault(threads.BOUND_CPUS_VARIABLE, str(max(1, len(mine) // sharing)))


def _link_library(mpi: Any) -> Path:
    abi = "openmpi" if mpi.Get_library_version().startswith("Open MPI") else "mpich"
    return Path(__file__).with_name(f"libringar_{abi}.so")


def _table(world: Any, hosts: list[int]) -> list[int]:
    """Rank 0 reads the parameters, if there is a file: the ranks must not choose differently."""
    count = len(set(hosts))
    if count == 1:
        return []
    parameters, error = None, None
    if world.Get_rank() == 0:
        try:
            parameters = cost_model.from_environment(os.environ)
        except ValueError as wrong:
            error = wrong
    parameters, error = world.bcast((parameters, error))
    if error:
        raise error
    if parameters is None:
        parameters = cost_model.measure(world, hosts)
    fewest = min(hosts.count(host) for host in set(hosts))
    return cost_model.table(parameters, count, fewest)
