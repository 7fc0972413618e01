"""Collectives on Python objects, pickled. Unpickle only what your own job has sent."""

from __future__ import annotations

import pickle
from typing import Any, TypeVar

import numpy as np

from ringar.collectives import call as calls
from ringar.collectives.allgather import allgather
from ringar.collectives.broadcast import broadcast
from ringar.job import place
from ringar.job.process_sets import ProcessSet

Object = TypeVar("Object")


def broadcast_object(
    obj: Object | None,
    root_rank: int = 0,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Object:
    """Send the root rank's object to all ranks.

    Args:
        obj: any object that can be pickled; only the root's matters.
        root_rank: a rank of the job.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Returns:
        The root's object itself on the root, and a copy on the others.

    Examples:
        What rank 0 of two sees:

        >>> ringar.broadcast_object({"rate": 0.1} if ringar.rank() == 0 else None)
        {'rate': 0.1}
    """
    where: dict[str, Any] = {
        "root_rank": root_rank,
        "name": name or "broadcast_object",
        "process_set": process_set,
    }
    is_root = place.rank() == root_rank
    data = np.frombuffer(pickle.dumps(obj), np.uint8) if is_root else np.empty(0, np.uint8)
    size = broadcast(np.array([data.size], np.int64), **where)
    payload = broadcast(data if is_root else np.empty(int(size[0]), np.uint8), **where)
    received: Any = obj if is_root else pickle.loads(payload.tobytes())
    return received


def allgather_object(
    obj: Object, *, name: str | None = None, process_set: ProcessSet | None = None
) -> list[Object]:
    """Collect one object from every rank.

    Args:
        obj: any object that can be pickled.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Returns:
        The objects of all ranks, in the order of the ranks.

    Examples:
        What rank 0 of two sees:

        >>> ringar.allgather_object(f"rank {ringar.rank()}")
        ['rank 0', 'rank 1']
    """
    call, _ = calls.begin("allgather", process_set, name or "allgather_object")
    data = np.frombuffer(pickle.dumps(obj), np.uint8)
    sizes = allgather(np.array([data.size], np.int64), name=call.name, process_set=process_set)
    payload = allgather(data, name=call.name, process_set=process_set).tobytes()
    ends = np.cumsum(sizes)
    return [pickle.loads(payload[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
