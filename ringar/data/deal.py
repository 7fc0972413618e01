"""The arithmetic of sharding: which elements, and which rows of a batch, belong to a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Remainder = Literal["drop", "wrap", "keep"]
REMAINDERS: tuple[Remainder, ...] = ("drop", "wrap", "keep")

#: The treatment of the last elements, where the user names none.
DEFAULT_REMAINDER: Remainder = "keep"


@dataclass(frozen=True)
class Deal:
    """Deal out elements to `size` ranks, of which this one is the `rank`-th.

    Attributes:
        rank: the number of this rank.
        size: the number of ranks.
        remainder: the treatment of the last elements.
    """

    rank: int
    size: int
    remainder: Remainder

    def count(self, elements: int) -> int:
        """Return how many of `elements` elements this rank gets.

        Raises:
            ValueError: if a rank would get none.
        """
        enough = elements >= (1 if self.remainder == "wrap" else self.size)
        if not enough:
            raise ValueError(
                f"`data` must have at least one element for each of {self.size} ranks. Received: "
                f"{elements} elements. Use fewer ranks or smaller batches, or "
                '`remainder="wrap"`, which gives some elements to several ranks.'
            )
        return len(range(self.rank, self.dealt(elements), self.size))

    def dealt(self, elements: int) -> int:
        """Return how many elements all ranks get together, out of `elements`."""
        changes = {"drop": -(elements % self.size), "wrap": -elements % self.size, "keep": 0}
        return elements + changes[self.remainder]

    def rows(self, rows: int) -> slice | np.ndarray:
        """Return the index of this rank's rows: where possible a slice, which copies nothing.

        Raises:
            ValueError: if a rank would get none.
        """
        self.count(rows)
        dealt = self.dealt(rows)
        if dealt <= rows:
            return slice(self.rank, dealt, self.size)
        return np.arange(self.rank, dealt, self.size) % rows

    def part(self, rows: int) -> slice:
        """Return this rank's rows of a split batch, which are one block.

        With "keep", blocks differ by one row at most. With "drop", they have the same length.
        """
        if self.remainder == "drop":
            length = rows // self.size
            return slice(self.rank * length, (self.rank + 1) * length)
        first, end = (-(-rank * rows // self.size) for rank in (self.rank, self.rank + 1))
        return slice(first, end)

    def has_part(self, rows: int) -> bool:
        """Return whether this rank gets rows of a batch of `rows` rows."""
        part = self.part(rows)
        return bool(part.start < part.stop)
