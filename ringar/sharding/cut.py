"""The mark of a variable that is cut: its axis and its grid.

The mark is an attribute of the variable. Optimizer, broadcast, checks and conversions read it, and
need not know the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import keras

    from ringar.sharding.grid import Grid


ATTRIBUTE = "_ringar_cut"
"""The attribute of a variable that holds its `Cut`."""


@dataclass(frozen=True)
class Cut:
    """Describe how a variable of one rank is a part of a whole variable.

    Attributes:
        axis: the axis along which the parts are joined. If the grid does not divide it, the first
            parts have one row more, unless the layer itself chooses the parts.
        grid: the grid that has the parts.
        even: whether all parts have the same size along the axis.
    """

    axis: int
    grid: Grid
    even: bool = True

    def common(self, shape: Sequence[int]) -> list[int | str]:
        """Return the sizes that all parts have in common; "*" where they may differ."""
        return [
            "*" if axis == self.axis and not self.even else size for axis, size in enumerate(shape)
        ]

    def part(self, whole: np.ndarray) -> np.ndarray:
        """Return this rank's part of the whole value."""
        return np.array_split(whole, self.grid.model, axis=self.axis)[self.grid.part]

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the whole value of the parts, which are in their order."""
        return np.concatenate(list(parts), axis=self.axis)


@dataclass(frozen=True)
class TileCut(Cut):
    """Describe a part that is a tile: `axis` is cut over rows of tiles, the next over columns."""

    def common(self, shape: Sequence[int]) -> list[int | str]:
        """Return the sizes that all tiles have in common."""
        cut = (self.axis, self.axis + 1)
        return ["*" if axis in cut else size for axis, size in enumerate(shape)]

    def part(self, whole: np.ndarray) -> np.ndarray:
        """Return this rank's tile of the whole value."""
        rows, columns = self.grid.tiles
        row, column = divmod(self.grid.part, columns)
        strip = np.array_split(whole, rows, axis=self.axis)[row]
        return np.array_split(strip, columns, axis=self.axis + 1)[column]

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the whole value of the tiles, which are in the order of their parts."""
        rows, columns = self.grid.tiles
        strips = [parts[row * columns : (row + 1) * columns] for row in range(rows)]
        return np.concatenate(
            [np.concatenate(list(strip), axis=self.axis + 1) for strip in strips], axis=self.axis
        )


def cut_of(variable: keras.Variable) -> Cut | None:
    """Return how a variable is cut; None if every rank has it whole."""
    return getattr(variable, ATTRIBUTE, None)


def mark(variable: keras.Variable, cut: Cut) -> None:
    """Mark a variable as cut, if the grid has more than one part."""
    if cut.grid.model > 1:
        setattr(variable, ATTRIBUTE, cut)
