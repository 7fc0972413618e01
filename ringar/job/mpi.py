"""Bootstrap of a job that MPI has started: places of ranks, shared memory, and the link.

`ringar.init()` does it once, by mpi4py. After that ringar's messages travel on a communicator of
their own. User code may use MPI at the same time if MPI was initialized with MPI_THREAD_MULTIPLE,
which is mpi4py's default.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np

from ringar import errors
from ringar.job import (
    cost_model,
    membership,
    mpi_host,
    mpi_survivors,
    native,
    other_launchers,
)
from ringar.job.cost_model import Tables
from ringar.job.stopwatch import Stopwatch
from ringar.version import __version__

if TYPE_CHECKING:
    from mpi4py import MPI

LAUNCHER_VARIABLE = "RINGAR_LAUNCHER"
"""`mpi` if ringarrun has started the ranks through MPI."""

JOB_SIZE_VARIABLE = "RINGAR_JOB_SIZE"
"""The number of ranks that ringarrun has started."""

ALGORITHM_VARIABLE = "RINGAR_ALGORITHM"

#: Memory layout and the choice of algorithms depend on these.
_MUST_AGREE = ("RINGAR_TUNING", ALGORITHM_VARIABLE)

_TAG = 32_766  # MPI promises tags up to 32,767


@dataclasses.dataclass(frozen=True)
class Place:
    """Hold this rank's place in the job, and its link to the other ranks.

    Attributes:
        rank: this rank.
        hosts: for each rank of the job, the number of its host.
        segment_fd: the shared segment of this host's ranks; -1 for one rank.
        link_library: the library for the ABI of this process' MPI.
        link_communicator: the address of the MPI_Comm for that library.
        tables: see `ringar.cost_model.tables`.
        generation: a number that is the same on all ranks, and new in each `join`.
        communicator: the same communicator as mpi4py's object.
    """

    rank: int
    hosts: list[int]
    segment_fd: int
    link_library: Path
    link_communicator: int
    tables: Tables
    generation: int
    communicator: MPI.Intracomm

    @property
    def size(self) -> int:
        """Return the number of ranks in the job."""
        return len(self.hosts)

    def local(self, rank: int) -> int:
        """Return the local rank of a rank."""
        return self.hosts[:rank].count(self.hosts[rank])

    @property
    def local_size(self) -> int:
        """Return the number of ranks on this host."""
        return self.hosts.count(self.hosts[self.rank])

    @property
    def cross(self) -> list[int]:
        """Return the hosts that have a rank of this local rank, in order."""
        place = self.local(self.rank)
        return sorted({host for host in self.hosts if self.hosts.count(host) > place})


def started_by_mpi(environ: Mapping[str, str]) -> bool:
    """Return whether this process is a rank that mpirun, mpiexec or srun has started."""
    if environ.get(LAUNCHER_VARIABLE) == "mpi" or launched_size(environ) > 1:
        return True
    # mpirun -np 1, or a script that uses MPI by itself.
    mpi = sys.modules.get("mpi4py.MPI")
    return bool(mpi and mpi.Is_initialized() and mpi.COMM_WORLD.Get_size() > 1)


def launched_size(environ: Mapping[str, str]) -> int:
    """Return the number of ranks that the environment tells; 1 if it tells none."""
    for variable in (JOB_SIZE_VARIABLE, *other_launchers.MPI_SIZES):
        if environ.get(variable, "").isdigit():
            return int(environ[variable])
    return 1


def join(start_timeout: float) -> Place:
    """Find the other ranks. Collective over all ranks of MPI's world, or over the survivors.

    Args:
        start_timeout: seconds to wait for the other ranks.

    Returns:
        This rank's place in the job.

    Raises:
        DeadlineError: a rank did not arrive; the message names it.
        PeerLostError: a rank was lost meanwhile, where a job of MPI outlives it.
        MismatchError: the ranks differ in ringar's version or settings, or MPI sees another number
            of ranks than the launcher has started.
        UnsupportedError: mpi4py is missing, its MPI has too low a thread level, or the ranks of a
            host share no memory.
    """
    mpi = _mpi4py()
    _initialize(mpi)
    with mpi_survivors.losses(mpi):
        return _meet(mpi, mpi_survivors.world(mpi, start_timeout), start_timeout)


def _meet(mpi: ModuleType, world: MPI.Intracomm, start_timeout: float) -> Place:
    global _joining_pid, _generation
    prefix = f"rank {world.Get_rank()} | "
    _joining_pid = os.getpid()
    _check_world(mpi, os.environ, prefix)
    _wait_for_all_ranks(mpi, world, start_timeout, prefix)
    _compare(world, prefix)
    with contextlib.ExitStack() as undo:
        of_host = world.Split_type(mpi.COMM_TYPE_SHARED, key=world.Get_rank())
        with mpi_survivors.part(cast("MPI.Intracomm", of_host)) as local:
            firsts = world.allgather(local.bcast(world.Get_rank()))
            segment_fd, trouble = mpi_host.share_memory(local, prefix, undo)
            mpi_host.publish_bound_cpus(local)
        # Without shared memory on one host, all hosts must fail: they would wait for it.
        agree(world, trouble)
        numbers = {first: number for number, first in enumerate(sorted(set(firsts)))}
        hosts = [numbers[first] for first in firsts]
        communicator = _own_communicator(mpi, world)
        # Ranks may have counted differently: one may have missed an earlier start.
        _generation = max(communicator.allgather(_generation + 1))
        place = Place(
            rank=world.Get_rank(),
            hosts=hosts,
            segment_fd=segment_fd,
            link_library=_link_library(mpi),
            link_communicator=mpi._addressof(communicator),
            tables=cost_model.tables_of_job(communicator, hosts),
            generation=_generation,
            communicator=communicator,
        )
        undo.pop_all()
    return place


def agree(communicator: MPI.Intracomm, error: Exception | None) -> None:
    """Raise on all ranks if one of them has an error. Collective.

    Args:
        communicator: a communicator of all ranks.
        error: the error of this rank; None: it can go on.

    Raises:
        Exception: `error`, on the rank that has one.
        RingarError: on the other ranks; names the rank and its error. A class of ringar is kept.
    """
    error_here = None if error is None else (type(error).__name__, str(error))
    with mpi_survivors.losses(_mpi4py()):
        everyone = communicator.allgather(error_here)
    if error is not None:
        raise error
    troubles = [(rank, *trouble) for rank, trouble in enumerate(everyone) if trouble is not None]
    if not troubles:
        return
    # A rank that timed out waited for a failed one: report the other error first.
    rank, kind, text = min(troubles, key=lambda trouble: trouble[1] == "DeadlineError")
    raise getattr(errors, kind, errors.RingarError)(
        f"rank {communicator.Get_rank()} | expected all ranks to start, but rank {rank} could not: "
        f"{kind}: {text}"
    )


def leave(place: Place, *, failed: bool) -> None:
    """Release the resources of `join`, after the native library has stopped using them.

    Args:
        place: the result of `join`.
        failed: whether a collective has failed for good. Then messages may still be under way.
    """
    global _communicator
    if failed or membership.is_by_mpi():
        _communicator = None
    mpi_survivors.leave(place.communicator, failed=failed)
    if place.segment_fd >= 0:
        os.close(place.segment_fd)


_has_initialized = False  # this module has initialized MPI
_joining_pid = 0  # the process that has called `join`: its forked children are no ranks
_generation = 0
_communicator: MPI.Intracomm | None = None
_unfinished: list[tuple[MPI.Request, np.ndarray]] = []  # transfers without a wait; their buffers


def is_in_job() -> bool:
    """Return whether this process is, or was, a rank of a job of MPI."""
    return _joining_pid == os.getpid()


def _mpi4py() -> ModuleType:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise errors.UnsupportedError(
            "expected mpi4py in a job that MPI has started, with the MPI of its mpirun or srun; "
            f"received: {error}. Install it on every host: pip install mpi4py"
        ) from error
    return MPI


def _initialize(mpi: ModuleType) -> None:
    """Initialize MPI where the program has told mpi4py not to.

    Raises:
        UnsupportedError: the program has finalized MPI.
    """
    global _has_initialized
    if mpi.Is_finalized():
        raise errors.UnsupportedError(
            "expected MPI before MPI_Finalize, received one that this program has finalized; call "
            "ringar.init() before MPI.Finalize()"
        )
    if not mpi.Is_initialized():  # mpi4py.rc.initialize = False
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
        _has_initialized = True


def finalize() -> None:
    """Finalize MPI at the end of the process, if `join` has initialized it.

    In that case mpi4py does not finalize it.
    """
    if _has_initialized and is_in_job() and not _mpi4py().Is_finalized():
        _mpi4py().Finalize()


def _library_name(mpi: ModuleType) -> str:
    return str(mpi.Get_library_version()).split("\n")[0].split(",")[0].strip()


def _check_world(mpi: ModuleType, environ: Mapping[str, str], prefix: str) -> None:
    job_size, world_size = launched_size(environ), mpi.COMM_WORLD.Get_size()
    if job_size not in (1, world_size):
        launchers = [
            name for variable, name in other_launchers.MPI_SIZES.items() if variable in environ
        ]
        raise errors.MismatchError(
            f"{prefix}expected {job_size} ranks, as many as were started, but mpi4py's MPI "
            f"({_library_name(mpi)}) sees {world_size}. They were started by "
            f"{launchers[0] if launchers else 'a launcher of another MPI'}: use the mpirun that "
            "belongs to mpi4py's MPI, or srun with the --mpi= plugin that it speaks "
            "(srun --mpi=list)."
        )
    level = mpi.Query_thread()
    if level < mpi.THREAD_SERIALIZED:
        raise errors.UnsupportedError(
            f"{prefix}expected MPI to be initialized with MPI_THREAD_MULTIPLE, received level "
            f"{level} (0: single, 1: funneled). ringar sends from a thread of its own. Leave the "
            'initialization to mpi4py, or set mpi4py.rc.thread_level = "multiple" before it.'
        )
    if level < mpi.THREAD_MULTIPLE:
        warnings.warn(
            f"{prefix}MPI was initialized with MPI_THREAD_SERIALIZED: between ringar.init() and "
            "ringar.shutdown() no other code of this process may call MPI while a collective of "
            "ringar runs. With MPI_THREAD_MULTIPLE it may.",
            stacklevel=2,
        )


def _wait_for_all_ranks(mpi: ModuleType, world: MPI.Intracomm, timeout: float, prefix: str) -> None:
    """Wait until every rank calls `ringar.init`; name the absent ranks after `timeout` seconds.

    MPI's barrier has no deadline and names no rank.
    """
    rank, size = world.Get_rank(), world.Get_size()
    is_absent = np.zeros(size, np.int8)
    stopwatch = Stopwatch()
    if rank == 0:
        arrivals = np.zeros((size, 1), np.int8)
        requests = [world.Irecv(arrivals[r], r, _TAG) for r in range(1, size)]
        while not mpi.Request.Testall(requests) and stopwatch.seconds() < timeout:
            time.sleep(0.0005)
        for r, request in enumerate(requests, start=1):
            if request and not request.Test():
                is_absent[r] = 1
                request.Cancel()
                request.Wait()
        answers = [world.Isend(is_absent, r, _TAG) for r in range(1, size) if not is_absent[r]]
        mpi.Request.Waitall(answers)
    else:
        arrival = np.zeros(1, np.int8)
        request = world.Isend(arrival, 0, _TAG)
        answer = world.Irecv(is_absent, 0, _TAG)
        # Rank 0 may have come later than this rank, and then waits longer.
        while not answer.Test():
            if stopwatch.seconds() > timeout + 5:
                answer.Cancel()
                answer.Wait()
                is_absent[0] = 1
                break
            time.sleep(0.0005)
        if is_absent[0]:
            _unfinished.append((request, arrival))
        else:
            request.Wait()  # complete: rank 0 answers only after it has received this message
    absentees = np.flatnonzero(is_absent).tolist()
    if absentees:
        raise errors.DeadlineError(
            f"{prefix}expected all {size} ranks in ringar.init(), but after {timeout:.3g} s still "
            f"waiting for rank {', '.join(map(str, absentees))}. Does every rank call "
            "ringar.init()? A slow start needs a longer --start-timeout."
        )


def _own_communicator(mpi: ModuleType, world: MPI.Intracomm) -> MPI.Intracomm:
    """Return a duplicate of `world`, the same one for every `join`, which is never freed.

    A control message may arrive after its receiver has left. Open MPI delivers a message for a
    freed communicator to the next one with the same number, and ends the process if that one has
    too few ranks. In ringar's own communicator the generation identifies late control messages.
    Messages of a failed collective cannot be identified, so the next start gets a new duplicate. So
    does a start of surviving ranks, since the last duplicate may have a lost rank.
    """
    global _communicator
    is_needed = _communicator is None or membership.is_by_mpi()
    if any(world.allgather(is_needed)):  # mpi4py's allreduce waits where no loss is reported
        _communicator = mpi_survivors.keep(world.Dup())
    assert _communicator is not None  # some rank has none, so all have a new one
    return _communicator


def _compare(world: MPI.Intracomm, prefix: str) -> None:
    values_here = {"ringar": __version__, **{name: os.environ.get(name) for name in _MUST_AGREE}}
    everyone = world.allgather((socket.gethostname(), values_here))
    for name in values_here:
        values = [f"rank {r} on {host}: {texts[name]}" for r, (host, texts) in enumerate(everyone)]
        if len({texts[name] for _, texts in everyone}) > 1:
            raise errors.MismatchError(
                f"{prefix}expected the same {name} on every rank, received\n  "
                + "\n  ".join(values)
            )


def _link_library(mpi: ModuleType) -> Path:
    abi = "openmpi" if mpi.Get_library_version().startswith("Open MPI") else "mpich"
    return native.PATH.with_name(f"libringar_{abi}.so")
