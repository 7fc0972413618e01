"""The log of a shard: the fate of each push, in the order in which pushes were taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

DROPPED = -1
"""`Entry.update` of a push that was dropped."""

HELD = -2
"""`Entry.update` of a push that still waits for its update."""

LOST = -3
"""`Entry.update` of a push that never came: its worker died when other shards had got theirs.

The entry tells from which version of the shard the worker has computed the gradients that the
others have applied.
"""


class Entry(NamedTuple):
    """Record a push to a shard.

    Attributes:
        sequence: the number of the push on its shard, from 0, in the order in which pushes were
            taken; -1 for one that never came.
        shard: the shard's number.
        worker: the worker's number.
        step: the number of this worker's push, from 0.
        version: the version that the gradients were computed from.
        staleness: the updates in between: `update` - `version`. For a push that is held or was
            dropped, those up to the time when it was taken.
        applied: whether it is part of an update.
        update: the number of that update, from 0, which led from version `update` to the next;
            `DROPPED`, `HELD` or `LOST` without one.
    """

    sequence: int
    shard: int
    worker: int
    step: int
    version: int
    staleness: int
    applied: bool
    update: int


def staleness_histogram(log: Iterable[Entry]) -> np.ndarray:
    """Count the applied pushes of each staleness.

    Args:
        log: entries of any shards.

    Returns:
        Counts, int64: the element with index tau is the number of pushes with staleness tau. It has
        length 0 if no push was applied.
    """
    staleness = [entry.staleness for entry in log if entry.applied]
    return np.bincount(np.array(staleness, np.int64))
