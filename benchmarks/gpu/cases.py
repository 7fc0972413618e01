"""The cases on GPUs as plain data: arrays, numbers of calls, and right results.

The harness and every rank make the same cases from the same options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness.definitions import DEFINITIONS, input_of
from benchmarks.peers.ringar_group import resnet50_gradients

OUT_OF_PLACE, IN_PLACE = "out of place", "in place"
DTYPES = ("float32", "float16")
LARGEST_EXACT = {"float32": 2**24, "float16": 2**11}
"""Whole numbers up to here have a place of their own in a dtype."""
LARGEST_GIVEN = 250
"""Of the numbers of `benchmarks.harness.definitions`."""

FEWEST_CALLS, MOST_CALLS = 20, 200
GROUP = tuple(resnet50_gradients())
"""Elements of each array of a group."""


@dataclass(frozen=True)
class Case:
    """A collective on one array, or on the arrays of a group.

    Attributes:
        collective: its name in `benchmarks.harness.definitions`.
        dtype: of all arrays.
        total: how many elements its size counts.
        parts: how many of them each array of a group has; empty: one array.
    """

    collective: str
    dtype: str
    total: int
    parts: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Its size, as nccl-tests counts it."""
        return self.total * np.dtype(self.dtype).itemsize

    @property
    def placements(self) -> tuple[str, ...]:
        """An allreduce and a broadcast may leave their result where the input was."""
        has_in_place = self.collective in ("allreduce", "broadcast")
        return (OUT_OF_PLACE, IN_PLACE) if has_in_place else (OUT_OF_PLACE,)

    def arrays(self, array: np.ndarray) -> list[np.ndarray]:
        """Cuts an array into those of the group."""
        return np.split(array, np.cumsum(self.parts)[:-1]) if self.parts else [array]

    def inputs(self, rank: int, ranks: int) -> list[np.ndarray]:
        """Returns the input of a rank: small whole numbers, whose sums in any order are exact."""
        array = input_of(self.collective, self.total, rank, ranks)
        return self.arrays(array.astype(self.dtype))

    def expected(self, rank: int, ranks: int) -> list[np.ndarray]:
        """Returns the right result of one call."""
        array = DEFINITIONS[self.collective].expected(self.total, rank, ranks)
        return self.arrays(array.astype(self.dtype))

    def calls(self, budget_bytes: int) -> int:
        """Returns the number of calls before a synchronization, the same on all ranks."""
        return max(FEWEST_CALLS, min(MOST_CALLS, budget_bytes // self.bytes))

    def growth(self, ranks: int, calls: int) -> np.floating[Any] | None:
        """Returns the factor from one result to that of `calls` calls in place, if it is known.

        After the first allreduce all ranks have the same numbers, and each further one multiplies
        them with the number of ranks. If that is a power of two, and sums of fewer ranks are exact,
        they are, until they are infinite. Otherwise they are rounded in an
        unknown order, and the answer is None.
        """
        summed = calls - 1 if self.collective == "allreduce" else 0
        of_fewer = LARGEST_GIVEN * ranks * (ranks - 1)
        if summed and (ranks & (ranks - 1) or of_fewer > LARGEST_EXACT[self.dtype]):
            return None
        with np.errstate(over="ignore"):
            factor: np.floating[Any] = (np.float64(ranks) ** summed).astype(self.dtype)
        return factor


def most_ranks(dtype: str) -> int:
    """Returns the largest number of ranks whose sum is exact in any order."""
    return LARGEST_EXACT[dtype] // LARGEST_GIVEN


def sizes(options: dict[str, Any], ranks: int) -> list[Case]:
    """Returns a case for each size, each on one array.

    Args:
        options: "collective", "dtype", and "sizes" in bytes.
        ranks: how many there are.
    """
    collective, dtype = options["collective"], options["dtype"]
    itemsize = np.dtype(dtype).itemsize
    elements = DEFINITIONS[collective].elements
    candidates = [Case(collective, dtype, elements(s, ranks, itemsize)) for s in options["sizes"]]
    return list(dict.fromkeys(candidates))


def cases(options: dict[str, Any], ranks: int) -> list[Case]:
    """Returns the sizes, and for allreduce a group of gradients and one array of its bytes."""
    candidates = sizes(options, ranks)
    if options["collective"] == "allreduce":
        candidates += [
            Case("allreduce", options["dtype"], sum(GROUP), parts) for parts in (GROUP, ())
        ]
    return list(dict.fromkeys(candidates))
