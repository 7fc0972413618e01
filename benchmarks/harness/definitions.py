"""The definition of each collective: its size, its rate, and its right result.

Sizes and busbw are those of nccl-tests. A size is the larger of the two arrays of a rank, so that
algbw = size / time compares all collectives; busbw = algbw * factor is the rate at which a rank's
link, or its memory, must move bytes whatever the number of ranks. Needs only NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ROOT_RANK = 0
_PERIOD = 251  # a prime, so that no part of an array looks like another


def contribution(rank: int, count: int) -> np.ndarray:
    """Returns the numbers of a rank: small and whole, so that sums in any order are exact."""
    pattern = ((np.arange(_PERIOD) * 7 + rank * 3) % _PERIOD).astype(np.float32)
    return np.tile(pattern, -(-count // _PERIOD))[:count]


@dataclass(frozen=True)
class Definition:
    """A collective.

    Attributes:
        size_is: what a size counts, in words.
        factor: busbw / algbw, given the number of ranks.
        parted: whether the size is cut into as many parts as there are ranks.
        redop: what it reduces with, as a word for tables.
        expected: given the elements of the size, the rank and the ranks: the right result.
    """

    size_is: str
    factor: Callable[[int], float]
    parted: bool
    redop: str
    expected: Callable[[int, int, int], np.ndarray]

    def elements(self, size: int, ranks: int, itemsize: int = 4) -> int:
        """Returns the elements of a size: at least one, and with `parted` one for each rank."""
        parts = ranks if self.parted else 1
        return parts * max(1, size // itemsize // parts)


def _sum(total: int, ranks: int) -> np.ndarray:
    period = min(total, _PERIOD)
    once = np.sum([contribution(r, period) for r in range(ranks)], axis=0, dtype=np.float32)
    return np.tile(once, -(-total // period))[:total]


def _part(array: np.ndarray, rank: int, ranks: int) -> np.ndarray:
    return array.reshape(ranks, -1)[rank]


def _gathered(total: int, rank: int, ranks: int) -> np.ndarray:
    return np.concatenate([contribution(r, total // ranks) for r in range(ranks)])


def _exchanged(total: int, rank: int, ranks: int) -> np.ndarray:
    return np.concatenate([_part(contribution(r, total), rank, ranks) for r in range(ranks)])


DEFINITIONS = {
    "allreduce": Definition(
        "bytes that each rank gives, and gets",
        lambda n: 2 * (n - 1) / n,
        parted=False,
        redop="sum",
        expected=lambda total, rank, ranks: _sum(total, ranks),
    ),
    "allgather": Definition(
        "bytes that each rank gets, of which it gives 1/n",
        lambda n: (n - 1) / n,
        parted=True,
        redop="none",
        expected=_gathered,
    ),
    "reducescatter": Definition(
        "bytes that each rank gives, of which it gets 1/n",
        lambda n: (n - 1) / n,
        parted=True,
        redop="sum",
        expected=lambda total, rank, ranks: _part(_sum(total, ranks), rank, ranks),
    ),
    "broadcast": Definition(
        "bytes that the root gives, and each rank gets",
        lambda n: 1.0,
        parted=False,
        redop="none",
        expected=lambda total, rank, ranks: contribution(ROOT_RANK, total),
    ),
    "alltoall": Definition(
        "bytes that each rank gives, 1/n of them to each rank, and gets",
        lambda n: (n - 1) / n,
        parted=True,
        redop="none",
        expected=_exchanged,
    ),
}


def input_of(collective: str, total: int, rank: int, ranks: int) -> np.ndarray:
    """Returns the input of a rank for a collective of `total` elements."""
    return contribution(rank, total // ranks if collective == "allgather" else total)
