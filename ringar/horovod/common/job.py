"""Start and end of a job, a rank's place in it, and its timeline: Horovod's basic functions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ringar.collectives import timeline
from ringar.collectives.agree import compare, together
from ringar.horovod.common import environment
from ringar.horovod.common.exceptions import initialized
from ringar.horovod.common.process_sets import ProcessSet, check_new, ranks_of
from ringar.job import log, membership, place, start
from ringar.job import process_sets as of_ringar

if TYPE_CHECKING:
    from mpi4py import MPI

_log = log.logger(__name__)
_timeline_path: str | None = None
_registered_by_init: list[ProcessSet] = []


size = initialized(place.size)
local_size = initialized(place.local_size)
cross_size = initialized(place.cross_size)
rank = initialized(place.rank)
local_rank = initialized(place.local_rank)
cross_rank = initialized(place.cross_rank)
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
        ValueError: on all ranks, if on one of them `comm` lacks a rank of the job, or
            `process_sets` has ranks twice or outside the job. Then this rank has joined no job, and
            no set is registered.
        MismatchError: ranks pass different sets.
    """
    had_joined = place.is_initialized()
    environment.apply(os.environ)
    start.init(**environment.times(os.environ))
    environment.publish(os.environ)
    if not had_joined:
        _registered_by_init.clear()
        if _is_later_world():  # the others call no `init`, and have agreed on the sets before
            _registered_by_init.extend(_listed(process_sets))
            renew()
            return
    added: list[ProcessSet] = []
    try:
        sets = _agreed_sets(comm, process_sets, had_joined)
        for process_set in sets:
            of_ringar.add_process_set(process_set)
            added.append(process_set)
    except Exception:
        if had_joined:
            for process_set in added:
                of_ringar.remove_process_set(process_set)
        else:
            start.shutdown()
        raise
    _registered_by_init.extend(added)


def renew() -> None:
    """Register the process sets of `init` in this world of an elastic job. All ranks call it.

    Ranks that join call `init`, and those that stay do not. A set whose ranks a later world lacks
    is not in use there.
    """
    for process_set in _registered_by_init:
        if _is_later_world() and max(process_set.ranks, default=0) >= place.size():
            _log.warning("%s is not in use in a world of %d ranks", process_set, place.size())
        else:
            of_ringar.add_process_set(process_set)


def _is_later_world() -> bool:
    """Return whether this is a later world of an elastic job."""
    return membership.is_elastic() and place.require("init").generation > 1


def _agreed_sets(
    comm: Sequence[int] | MPI.Comm | None,
    process_sets: Sequence[ProcessSet] | str | None,
    had_joined: bool,
) -> list[ProcessSet]:
    """Return the sets to register, in one order on all ranks, or raise on all ranks."""

    def described() -> list[tuple[bool, list[int]]]:
        if comm is not None:
            _check_all_ranks(comm)
        sets = _listed(process_sets)
        for number, process_set in enumerate(sets):
            check_new(process_set, sets[:number])
        return [(process_set.mpi_comm is not None, process_set.ranks) for process_set in sets]

    # A single rank may call `init` a second time, and a rank joins an elastic job alone.
    if comm is None and not process_sets and (had_joined or membership.is_elastic()):
        return []
    of_ranks = together(described, caller="init", deed='to pass valid "comm" and "process_sets"')
    plain = [[None if of_comm else ranks for of_comm, ranks in sets] for sets in of_ranks]
    compare(
        [{"process_sets": sets} for sets in plain],
        caller="init",
        remedy="Pass the same sets, in one order, on all ranks.",
    )
    return [
        chosen
        for number, process_set in enumerate(_listed(process_sets))
        for chosen in _of_one_place(process_set, [sets[number][1] for sets in of_ranks])
    ]


def _of_one_place(process_set: ProcessSet, of_ranks: Sequence[list[int]]) -> list[ProcessSet]:
    """Return the sets at one place of the list; of communicators each rank names its own."""
    return [
        process_set if list(ranks) == process_set.ranks else ProcessSet(list(ranks))
        for ranks in sorted(set(map(tuple, of_ranks)))
    ]


def _listed(process_sets: Sequence[ProcessSet] | str | None) -> list[ProcessSet]:
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(
                f'init expected process sets, None or "dynamic"; received {process_sets!r}'
            )
        return []
    sets = list(process_sets or ())
    if values := [value for value in sets if not isinstance(value, ProcessSet)]:
        raise ValueError(f"init expected ProcessSet objects in `process_sets`; received {values}")
    return sets


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


@initialized
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


@initialized
def stop_timeline() -> None:
    """End the recording that `start_timeline` has begun, and write its file. All ranks call it."""
    global _timeline_path
    rank()
    if _timeline_path is not None:
        path, _timeline_path = _timeline_path, None
        timeline.stop_timeline(path)
