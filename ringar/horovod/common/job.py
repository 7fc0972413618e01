"""Start and end of a job, a rank's place in it, and its timeline: Horovod's basic functions."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ringar.collectives import allgather_object, timeline
from ringar.errors import NotInitializedError
from ringar.horovod.common import environment
from ringar.horovod.common.exceptions import UninitializedError
from ringar.horovod.common.process_sets import ProcessSet, add_process_set, ranks_of
from ringar.job import log, membership, place, start

if TYPE_CHECKING:
    from mpi4py import MPI

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_log = log.logger(__name__)
_timeline_path: str | None = None
_registered_by_init: list[ProcessSet] = []


def _initialized(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a function raise Horovod's ValueError before `init`."""

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except NotInitializedError as error:
            raise UninitializedError(str(error)) from None

    return call


size = _initialized(place.size)
local_size = _initialized(place.local_size)
cross_size = _initialized(place.cross_size)
rank = _initialized(place.rank)
local_rank = _initialized(place.local_rank)
cross_rank = _initialized(place.cross_rank)
is_initialized = place.is_initialized


def init(
    comm: Sequence[int] | MPI.Comm | None = None,
    process_sets: Sequence[ProcessSet] | str | None = None,
) -> None:
    """Join the job and wait for all its ranks.

    Args:
        comm: None; or all ranks of the job, as a list or as a communicator of mpi4py.
        process_sets: sets to register, the same on all ranks; or "dynamic", as None.

    Raises:
        ValueError: `comm` lacks a rank of the job, or `process_sets` has ranks twice.
    """
    environment.apply(os.environ)
    start.init(**environment.times(os.environ))
    environment.publish(os.environ)
    if comm is not None:
        _check_all_ranks(comm)
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(
                f'init expected process sets, None or "dynamic"; received {process_sets!r}'
            )
        process_sets = None
    _registered_by_init[:] = process_sets or ()
    renew()


def renew() -> None:
    """Register the process sets of `init` in this world of an elastic job. All ranks call it.

    Ranks that join call `init`, and those that stay do not. A set whose ranks a later world lacks
    is not in use there.
    """
    is_later = membership.is_elastic() and place.require("init").generation > 1
    for process_set in _registered_by_init:
        if is_later and max(process_set.ranks, default=0) >= place.size():
            _log.warning("%s is not in use in a world of %d ranks", process_set, place.size())
        else:
            _register(process_set)


def _register(process_set: ProcessSet) -> None:
    """Register a set; from communicators, each rank has named the one that it is in."""
    if process_set.mpi_comm is None:
        add_process_set(process_set)
        return
    of_ranks = allgather_object(process_set.ranks, name="process sets")
    for ranks in sorted(set(map(tuple, of_ranks))):
        add_process_set(process_set if list(ranks) == process_set.ranks else list(ranks))


def _check_all_ranks(comm: Sequence[int] | MPI.Comm) -> None:
    ranks = ranks_of(comm) if hasattr(comm, "Get_group") else list(comm)
    if ranks and sorted(ranks) != list(range(place.size())):
        raise ValueError(
            f"init expected all {place.size()} ranks of the job in `comm`, received {ranks}; start "
            "a job of as many ranks, or pass a ProcessSet to collectives and optimizers"
        )


def shutdown() -> None:
    """Leave the job."""
    start.shutdown()


def is_homogeneous() -> bool:
    """Return whether all hosts have the same number of ranks."""
    rank()
    return len(set(Counter(place.hosts()).values())) == 1


@_initialized
def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begin to record the collectives of this rank. All ranks call it, with the same path.

    Args:
        file_path: the file that `stop_timeline` writes.
        mark_cycles: no effect: ringar has no cycles.
    """
    global _timeline_path
    del mark_cycles
    timeline.start_timeline(file_path)
    _timeline_path = file_path


@_initialized
def stop_timeline() -> None:
    """End the recording that `start_timeline` has begun, and write its file. All ranks call it."""
    global _timeline_path
    rank()
    if _timeline_path is not None:
        path, _timeline_path = _timeline_path, None
        timeline.stop_timeline(path)
