"""The mark of a variable that is cut: which part of a whole variable a rank has.

The mark is an attribute of the variable. Optimizer, broadcast, checks and conversions read it, and
need not know the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras

    from ringar.sharding.grid import Grid


ATTRIBUTE = "_ringar_cut"
"""The attribute of a variable that holds its `Cut`."""


@dataclass(frozen=True)
class Cut:
    """Describe which part of a whole variable a rank has: equal parts along an axis.

    A cut of another kind is a subclass, with a `part`, a `join` and the `uneven` axes of its own.

    Attributes:
        axis: the axis along which the parts are joined.
        grid: the grid that has the parts.
    """

    axis: int
    grid: Grid

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes along which the whole is cut."""
        return (self.axis,)

    @property
    def uneven(self) -> tuple[int, ...]:
        """The axes along which the sizes of the parts may differ."""
        return ()

    def part(self, value: np.ndarray) -> np.ndarray:
        """Return this rank's part of the whole value."""
        return np.split(value, self.grid.model, axis=self.axis)[self.grid.part]

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the whole value, given the parts in their order."""
        return np.concatenate(list(parts), axis=self.axis)


@dataclass(frozen=True)
class TileCut(Cut):
    """Describe a part that is a tile: `axis` is cut over rows of tiles, the next over columns.

    Rows and columns are dealt out as those of planes are (`ringar.sharding.planes`).
    """

    @property
    def axes(self) -> tuple[int, ...]:
        """Both axes of the tiles."""
        return self.axis, self.axis + 1

    @property
    def uneven(self) -> tuple[int, ...]:
        """The same: rows and columns need not be divisible."""
        return self.axes

    def part(self, value: np.ndarray) -> np.ndarray:
        """Return this rank's tile of the whole value."""
        rows, columns = self.grid.tiles
        row, column = divmod(self.grid.part, columns)
        strip = np.array_split(value, rows, axis=self.axis)[row]
        return np.array_split(strip, columns, axis=self.axis + 1)[column]

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the whole value, given the tiles in the order of their parts."""
        rows, columns = self.grid.tiles
        strips = [parts[row * columns : (row + 1) * columns] for row in range(rows)]
        return np.concatenate(
            [np.concatenate(list(strip), axis=self.axis + 1) for strip in strips], axis=self.axis
        )


@dataclass(frozen=True)
class PlacedCut(Cut):
    """Describe a part that has any places along `axis`, in any number.

    Attributes:
        places: returns the places of a part in the whole, in the order of the part. Each place
            belongs to one part.
    """

    places: Callable[[int], np.ndarray]

    @property
    def uneven(self) -> tuple[int, ...]:
        """The axis of the places."""
        return (self.axis,)

    def part(self, value: np.ndarray) -> np.ndarray:
        """Return this rank's part of the whole value."""
        return np.take(value, self.places(self.grid.part), axis=self.axis)

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the whole value, given the parts in their order."""
        places = np.concatenate([self.places(part) for part in range(len(parts))])
        joined = np.concatenate(list(parts), axis=self.axis)
        joined_in_order = np.empty_like(joined)
        joined_in_order[(slice(None),) * self.axis + (places,)] = joined
        return joined_in_order


def cut_of(variable: keras.Variable) -> Cut | None:
    """Return how a variable is cut; None if every rank has it whole."""
    return getattr(variable, ATTRIBUTE, None)


def mark(variable: keras.Variable, cut: Cut) -> None:
    """Mark a variable as cut, if the grid has more than one part.

    Raises:
        ValueError: the variable has a constraint that needs the other parts: a norm along an axis
            that is cut.
    """
    if cut.grid.model == 1:
        return
    constraint: Any = getattr(variable, "constraint", None)
    along = getattr(constraint, "axis", ())
    along = list(along) if isinstance(along, list | tuple) else [along]
    rank = len(variable.shape)
    if any(axis is None or axis % rank in cut.axes for axis in along):
        raise ValueError(
            f"The constraint of {variable.path} must not take norms along the axes {cut.axes}, of "
            f"which each rank has a part. Received: {type(constraint).__name__} with "
            f"axis={constraint.axis}. Choose other axes, or a constraint of each element."
        )
    setattr(variable, ATTRIBUTE, cut)
