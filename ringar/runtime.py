"""The job: who am I, how many are we, and which groups of us communicate."""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Callable, Mapping, Sequence

from ringar import gpus, mpi, native, nvidia, threads, timeline
from ringar.cost_model import ALGORITHMS
from ringar.errors import NotInitializedError

DEFAULT_DEADLINE = 600.0
DEFAULT_STALL_WARNING = 30.0
DEFAULT_START_TIMEOUT = 120.0


class ProcessSet:
    """Some ranks of the job, which run collectives among themselves.

    Args:
        ranks: ranks of the job, in the order that the set numbers them. The order and the ranks
            must be the same on every rank of the job.

    A set can be used after :func:`add_process_set`.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks: list[int] = [int(r) for r in ranks]
        self.process_set_id: int | None = None

    def size(self) -> int:
        """How many ranks the set has."""
        return len(self.ranks)

    def rank(self) -> int:
        """This rank's place in the set, from 0; -1 if it is not a member."""
        me = rank()
        return self.ranks.index(me) if me in self.ranks else -1

    def included(self) -> bool:
        """Whether this rank is a member."""
        return self.rank() >= 0

    def __repr__(self) -> str:
        return f"ProcessSet(ranks={self.ranks}, process_set_id={self.process_set_id})"


class _Job:
    def __init__(self) -> None:
        self.config: native.Config | None = None
        self.place: mpi.Place | None = None  # in a job that MPI has started
        self.process_sets: dict[int, ProcessSet] = {}
        self.has_failed = False  # a collective between hosts, for good


_job = _Job()
global_process_set = ProcessSet([])
"""All ranks of the job. Its ranks are known after :func:`init`."""


def init(
    *,
    intra_op_threads: int | None = None,
    inter_op_threads: int | None = None,
    deadline: float | None = None,
    stall_warning: float | None = None,
    start_timeout: float | None = None,
) -> None:
    """Joins the job and waits for all its ranks. Does nothing if that was done before.

    Without a launcher the job has one rank, and everything works unchanged. Ranks may be started by
    `ringarrun`, or by `mpirun` or `srun` where mpi4py is installed.

    Args:
        intra_op_threads: threads that one TensorFlow op may use; see :mod:`ringar.threads`.
        inter_op_threads: TensorFlow ops that may run at once.
        deadline: seconds after which a collective that waits for a rank fails (environment:
            ``RINGAR_DEADLINE``; default 600).
        stall_warning: seconds after which it says whom it waits for (``RINGAR_STALL_WARNING``; 30).
        start_timeout: seconds to wait here for the other ranks (``RINGAR_START_TIMEOUT``; 120).

    Raises:
        DeadlineError: a rank did not call ``init`` in time.
        MismatchError: the ranks have different versions of ringar or settings, or MPI sees other
            ranks than were started.
        UnsupportedError: MPI has started the ranks, but cannot be used.
        ValueError: an environment variable or a time is not a number that makes sense.

    In a job that MPI has started all ranks raise if one of them does: what failed on another rank
    is in the message.
    """
    if _job.config is not None:
        return
    config = _read_config(os.environ, deadline, stall_warning, start_timeout)
    place = None
    if "RINGAR_RANK" not in os.environ and mpi.has_started_us(os.environ):
        place = mpi.join(config.start_timeout)
        _set_place(config, place)
    try:
        _on_all_ranks(place, lambda: _prepare(config, intra_op_threads, inter_op_threads))
        _on_all_ranks(place, lambda: _start(config, place))
    except Exception:
        if is_initialized():
            shutdown()
        elif place is not None:
            mpi.leave(place, failed=False)
        raise


def _on_all_ranks(place: mpi.Place | None, step: Callable[[], None]) -> None:
    """Takes a step of `init`; raises on all ranks of a job that MPI has started if one fails."""
    error = None
    try:
        step()
    except Exception as wrong:
        if place is None:
            raise
        error = wrong
    if place is not None:
        mpi.agree(place.communicator, error)


def _prepare(config: native.Config, intra_op: int | None, inter_op: int | None) -> None:
    # All that can fail before the ranks of a host wait for each other.
    threads.configure(intra_op, inter_op, config.local_size)
    gpus.configure(config.rank, config.local_rank, config.local_size)
    native.library()


def _start(config: native.Config, place: mpi.Place | None) -> None:
    native.check(native.library().ringar_init(ctypes.byref(config)))
    _job.config, _job.place = config, place
    global_process_set.ranks = list(range(config.size))
    global_process_set.process_set_id = 0
    _job.process_sets = {0: global_process_set}
    if path := os.environ.get(timeline.VARIABLE):
        timeline.record(path)


def shutdown() -> None:
    """Leaves the job. Other ranks that still wait for this one get an error that says so."""
    if _job.config is None:
        return
    _job.config = None
    for process_set in _job.process_sets.values():
        process_set.process_set_id = None
    _job.process_sets = {}
    global_process_set.ranks = []
    failed = bool(native.library().ringar_has_failed())
    native.library().ringar_shutdown()
    native.library().ringar_stop_timeline()
    if _job.place is not None:
        _job.has_failed = _job.has_failed or failed
        mpi.leave(_job.place, failed=failed)
        _job.place = None


def _forget() -> None:
    # A forked child (of a data loader, say) is no rank, and its end is not ours: the native library
    # forgets its engine in it by itself.
    _job.config = None


def _at_exit() -> None:
    code = mpi.code_of_uncaught_exception() if mpi.is_in_job() else 0
    shutdown()
    # Not with 0, although the program may have caught the error: other ranks have not come.
    if mpi.is_in_job() and (code or _job.has_failed):
        mpi.end_without_finalize(code or 1)


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_forget)


def _read_config(
    environment: Mapping[str, str],
    deadline: float | None,
    stall_warning: float | None,
    start_timeout: float | None,
) -> native.Config:
    def whole(name: str, default: int) -> int:
        text = environment.get(name, str(default))
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{name} must be a whole number. Received: {text!r}") from None

    def seconds(argument: str, name: str, given: float | None, default: float) -> float:
        text = environment.get(name, default) if given is None else given
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{name} must be a number of seconds. Received: {text!r}") from None
        if not value > 0:
            raise ValueError(f"{argument} must be more than 0 seconds. Received: {value}")
        return value

    config = native.Config(
        rank=whole("RINGAR_RANK", 0),
        size=whole("RINGAR_SIZE", 1),
        local_rank=whole("RINGAR_LOCAL_RANK", 0),
        local_size=whole("RINGAR_LOCAL_SIZE", 1),
        cross_rank=whole("RINGAR_CROSS_RANK", 0),
        cross_size=whole("RINGAR_CROSS_SIZE", 1),
        arena_fd=whole("RINGAR_ARENA_FD", -1),
        deadline=seconds("deadline", "RINGAR_DEADLINE", deadline, DEFAULT_DEADLINE),
        stall_warning=seconds(
            "stall_warning", "RINGAR_STALL_WARNING", stall_warning, DEFAULT_STALL_WARNING
        ),
        start_timeout=seconds(
            "start_timeout", "RINGAR_START_TIMEOUT", start_timeout, DEFAULT_START_TIMEOUT
        ),
    )
    if algorithm := environment.get(mpi.ALGORITHM_VARIABLE):
        if algorithm not in ALGORITHMS:
            raise ValueError(
                f"{mpi.ALGORITHM_VARIABLE} must be one of {', '.join(ALGORITHMS)}. "
                f"Received: {algorithm!r}"
            )
        config.algorithm = algorithm.encode()
    if library := nvidia.cuda_library(environment):
        config.cuda_library = os.fsencode(library)
    if library := nvidia.nccl_library(environment):
        config.nccl_library = os.fsencode(library)
    if not 0 <= config.rank < config.size:
        raise ValueError(
            f"RINGAR_RANK must be from 0 to RINGAR_SIZE - 1. Received: RINGAR_RANK={config.rank}, "
            f"RINGAR_SIZE={config.size}"
        )
    return config


def _set_place(config: native.Config, place: mpi.Place) -> None:
    config.rank, config.size = place.rank, place.size
    config.local_rank, config.local_size = place.local(place.rank), place.local_size
    config.cross_rank = place.cross.index(place.hosts[place.rank])
    config.cross_size = len(place.cross)
    config.arena_fd = place.arena_fd
    config.generation = place.generation
    config.set_link(
        place.hosts,
        place.link_library,
        place.link_communicator,
        place.recursive_doubling_bytes,
    )


def _config(what: str) -> native.Config:
    if _job.config is None:
        raise NotInitializedError(f"ringar is not initialized: call ringar.init() before {what}")
    return _job.config


def is_initialized() -> bool:
    """Whether :func:`init` was called, and :func:`shutdown` not since."""
    return _job.config is not None


def rank() -> int:
    """This process' number in the job, from 0."""
    return int(_config("ringar.rank()").rank)


def size() -> int:
    """How many ranks the job has."""
    return int(_config("ringar.size()").size)


def local_rank() -> int:
    """This process' number on its host, from 0."""
    return int(_config("ringar.local_rank()").local_rank)


def local_size() -> int:
    """How many ranks run on this host."""
    return int(_config("ringar.local_size()").local_size)


def cross_rank() -> int:
    """The number of this host among those that have a rank of this local rank."""
    return int(_config("ringar.cross_rank()").cross_rank)


def cross_size() -> int:
    """How many hosts have a rank of this local rank."""
    return int(_config("ringar.cross_size()").cross_size)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a process set usable. Collective: every rank of the job calls it, members or not.

    A rank runs its collectives one after the other, in the order of issue, whatever their process
    sets. Ranks that share two sets must therefore issue the collectives of both in one order; two
    threads of each rank, one per set, would have them wait for each other until the deadline.

    Args:
        process_set: the set, or its ranks.

    Returns:
        The set, with its ``process_set_id``.

    Raises:
        ValueError: no ranks, a rank that is not of this job, a rank twice, or a set added before.
        MismatchError: the ranks of the job do not all add the same set.
    """
    job = _config("ringar.add_process_set()")
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    ranks = process_set.ranks
    if process_set.process_set_id is not None:
        raise ValueError(f"process_set must not have been added before. Received: {process_set}")
    if not ranks or len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(job.size)):
        raise ValueError(
            f"ranks must be different ranks from 0 to {job.size - 1}, at least one. "
            f"Received: {ranks}"
        )
    set_id = ctypes.c_int32()
    array = (ctypes.c_int32 * len(ranks))(*ranks)
    native.check(native.library().ringar_add_process_set(array, len(ranks), ctypes.byref(set_id)))
    process_set.process_set_id = set_id.value
    _job.process_sets[set_id.value] = process_set
    return process_set


def remove_process_set(process_set: ProcessSet) -> None:
    """Takes a process set out of use. Collective over all ranks of the job.

    Raises:
        ValueError: the set was never added, or is that of all ranks.
    """
    _config("ringar.remove_process_set()")
    if not process_set.process_set_id:
        raise ValueError(
            f"process_set must have been added with ringar.add_process_set(), and must not be "
            f"the global one. Received: {process_set}"
        )
    native.check(native.library().ringar_remove_process_set(process_set.process_set_id))
    del _job.process_sets[process_set.process_set_id]
    process_set.process_set_id = None


def size_of(process_set_id: int) -> int:
    """How many ranks a process set has."""
    return _job.process_sets[process_set_id].size()


def place_in(process_set_id: int) -> int:
    """This rank's place in a process set, -1 if it is not a member."""
    return _job.process_sets[process_set_id].rank()
