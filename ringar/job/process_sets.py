"""Process sets: groups of ranks that run collectives among themselves."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence

from ringar.errors import RingarError
from ringar.job import native, place


class ProcessSet:
    """Name a group of ranks that run collectives among themselves.

    Args:
        ranks: ranks of the job, in the order of their numbers in the set. Ranks and order must be
            the same on every rank of the job.

    Attributes:
        ranks: the ranks of the job that are members.
        process_set_id: the number of the set; None before `ringar.add_process_set`.

    Use a set after `ringar.add_process_set`.

    Examples:
        On rank 0 of two:

        >>> second = ringar.ProcessSet([1])
        >>> second.size(), second.rank(), second.included()
        (1, -1, False)
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks: list[int] = [int(r) for r in ranks]
        self.process_set_id: int | None = None

    def size(self) -> int:
        """Return the number of ranks in the set."""
        return len(self.ranks)

    def rank(self) -> int:
        """Return the number of this rank in the set, from 0; -1 if it is not a member."""
        me = place.rank()
        return self.ranks.index(me) if me in self.ranks else -1

    def included(self) -> bool:
        """Return whether this rank is a member."""
        return self.rank() >= 0

    def __repr__(self) -> str:
        return f"ProcessSet(ranks={self.ranks}, process_set_id={self.process_set_id})"


class _AllRanks(ProcessSet):
    """Name all ranks of the job."""

    def __init__(self) -> None:
        super().__init__([])

    def size(self) -> int:
        return place.size()

    def rank(self) -> int:
        return place.rank()


_in_use: dict[int, ProcessSet] = {}

global_process_set: ProcessSet = _AllRanks()
"""All ranks of the job, known after `ringar.init`."""


def or_all(process_set: ProcessSet | None) -> ProcessSet:
    """Return `process_set`, or the set of all ranks for None and for any object with its id."""
    if process_set is None or process_set.process_set_id == 0:
        return global_process_set
    return process_set


def begin(size: int) -> None:
    """Register the set of all ranks, in a job of `size` ranks."""
    global_process_set.ranks = list(range(size))
    global_process_set.process_set_id = 0
    _in_use[0] = global_process_set


def end() -> None:
    """Unregister all sets."""
    for process_set in _in_use.values():
        process_set.process_set_id = None
    _in_use.clear()
    global_process_set.ranks = []


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set. Every rank of the job calls it, members or not.

    A rank runs the collectives of one set one after the other, in the order of issue. Process sets
    do not wait for each other: neither asynchronous collectives of a `tf.function`, nor those of
    several threads. A call that waits for its result (NumPy, eager and compiled code, short
    collectives of a `tf.function`) keeps its thread from issuing the next one. In one thread, ranks
    that share two sets must therefore issue such calls of both in one order. On GPUs all sets share
    a stream, and ranks must issue all collectives in one order.

    Args:
        process_set: the set, or its ranks.

    Returns:
        The set, with its `process_set_id`.

    Raises:
        ValueError: the set is empty, has a rank twice or one outside the job, or was added before.
        MismatchError: on all ranks, if they do not all add the same set, or one of them has no
            memory for it; and on the others, if one raises a ValueError.

    Examples:
        Rank 0 of two gathers numbers of its own set, and then of all ranks:

        >>> first = ringar.add_process_set([0])
        >>> if first.included():
        ...     ringar.allgather(np.array([ringar.rank()]), process_set=first)
        array([0])
        >>> ringar.allgather(np.array([ringar.rank()]))
        array([0, 1])
        >>> ringar.remove_process_set(first)
    """
    place.require("ringar.add_process_set()")
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    try:
        check_new(process_set)
    except ValueError:
        with contextlib.suppress(RingarError):
            _add([])  # which the library refuses on all ranks
        raise
    process_set.process_set_id = _add(process_set.ranks)
    _in_use[process_set.process_set_id] = process_set
    return process_set


def _add(ranks: Sequence[int]) -> int:
    """Let the ranks agree on a set, and return its number."""
    set_id = ctypes.c_int32()
    array = (ctypes.c_int32 * len(ranks))(*ranks)
    native.check(native.library().ringar_add_process_set(array, len(ranks), ctypes.byref(set_id)))
    return set_id.value


def check_new(process_set: ProcessSet) -> None:
    """Raise ValueError if a set was added before, or has other ranks than those of the job."""
    ranks, size = process_set.ranks, place.size()
    if process_set.process_set_id is not None:
        raise ValueError(f"process_set must not have been added before. Received: {process_set}")
    if not ranks or len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(size)):
        raise ValueError(
            f"ranks must be different ranks from 0 to {size - 1}, at least one. Received: {ranks}"
        )


def remove_process_set(process_set: ProcessSet) -> None:
    """Unregister a process set. Every rank of the job calls it.

    Raises:
        ValueError: the set was not added, or is the set of all ranks.

    Examples:
        >>> everyone = ringar.add_process_set(range(ringar.size()))
        >>> ringar.remove_process_set(everyone)
        >>> everyone.process_set_id is None
        True
    """
    place.require("ringar.remove_process_set()")
    if not process_set.process_set_id:
        raise ValueError(
            f"process_set must have been added with ringar.add_process_set(), and must not be "
            f"the global one. Received: {process_set}"
        )
    native.check(native.library().ringar_remove_process_set(process_set.process_set_id))
    place.repeats.clear()
    del _in_use[process_set.process_set_id]
    process_set.process_set_id = None


def in_use() -> list[ProcessSet]:
    """Return the sets that are registered, that of all ranks first."""
    return list(_in_use.values())


def size_of(process_set_id: int) -> int:
    """Return the number of ranks in a process set."""
    return _in_use[process_set_id].size()


def rank_in(process_set_id: int) -> int:
    """Return the number of this rank in a process set; -1 if it is not a member."""
    return _in_use[process_set_id].rank()
