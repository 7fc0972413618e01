"""The common part of mailboxes in windows: records, and the wait for a record.

A mailbox is memory in a window that one rank writes and another reads later. The writer puts the
data first, and then a record that announces it. A record is one chunk of its window, so a reader
sees all of it or nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ringar.collectives.window import Window
from ringar.job.process_sets import ProcessSet

RECORD = 8
"""The numbers of a record, int64."""

_ALIGNMENT = 64


class Records(Window):
    """Open a window of records. Collective.

    Args:
        count: the number of records in this rank's part.
        process_set: the ranks that open it.
        name: the name of the window.
    """

    def __init__(self, count: int, process_set: ProcessSet, name: str) -> None:
        size = count * RECORD
        super().__init__(size, "int64", process_set, name=name, chunk_bytes=8 * RECORD)

    def read(self, rank: int, record: int) -> np.ndarray:
        """Read a record of a rank: `RECORD` numbers."""
        return self.get(rank, record * RECORD, RECORD)

    def numbers(self, rank: int, record: int, count: int) -> list[int]:
        """Read a record of a rank; return its first `count` numbers."""
        return [int(number) for number in self.read(rank, record)[:count]]

    def write(self, rank: int, record: int, numbers: Sequence[int], place: int = 0) -> None:
        """Write numbers to a record of a rank, from a place in it on."""
        self.put(rank, np.array(numbers, np.int64), record * RECORD + place)


def aligned(size: int) -> int:
    """Return the least number of bytes, at least `size`, behind which the next array may lie."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def pause(waited: float, shortest: float = 20e-6, longest: float = 1e-3) -> None:
    """Sleep before the next look at a record, for an eighth of the wait.

    Args:
        waited: the seconds that the caller has waited.
        shortest: the shortest pause, in seconds.
        longest: the longest one.
    """
    time.sleep(min(max(waited / 8, shortest), longest))
