"""Planes of images that are cut into tiles, one for each rank of a model group.

A plane of H x W pixels on a grid of R x C tiles: the rows of pixels are dealt evenly to R rows of
tiles, the columns to C, and the first get one more where a rest is left. The place of a tile
depends only on the size of the plane and on the grid. Two branches of a net with planes of one size
are therefore cut alike, and every rank knows the tiles of the others without asking them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ringar.sharding.grid import Grid


class Interval(NamedTuple):
    """Name the rows, or columns, from `start` up to `stop`, which is excluded."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.stop - self.start

    def meet(self, other: Interval) -> Interval:
        """Return the rows that are in both; of size 0 if there are none."""
        start = max(self.start, other.start)
        return Interval(start, max(start, min(self.stop, other.stop)))

    def seen_from(self, origin: int) -> Interval:
        """Return the same rows, counted from row `origin`."""
        return Interval(self.start - origin, self.stop - origin)

    @property
    def slice(self) -> slice:
        """The rows as an index."""
        return slice(self.start, self.stop)


class Box(NamedTuple):
    """Name a rectangle of a plane."""

    rows: Interval
    columns: Interval

    @property
    def area(self) -> int:
        """The number of pixels."""
        return self.rows.size * self.columns.size

    def meet(self, other: Box) -> Box:
        """Return the pixels that are in both."""
        return Box(self.rows.meet(other.rows), self.columns.meet(other.columns))

    def seen_from(self, other: Box) -> Box:
        """Return the same pixels, counted from the first of `other`."""
        return Box(
            self.rows.seen_from(other.rows.start), self.columns.seen_from(other.columns.start)
        )


def deal(extent: int, parts: int) -> list[Interval]:
    """Return the rows of each part, as even as can be."""
    size, rest = divmod(extent, parts)
    starts = [part * size + min(part, rest) for part in range(parts + 1)]
    return [Interval(*ends) for ends in pairwise(starts)]


@dataclass(frozen=True)
class Plane:
    """Describe a plane that is cut over a grid.

    Attributes:
        height: the rows of the whole plane.
        width: the columns of the whole plane.
        grid: the grid whose parts have the tiles.
        channel_axis: the axis of the channels, 3 or 1.
    """

    height: int
    width: int
    grid: Grid
    channel_axis: int = 3

    @property
    def axes(self) -> tuple[int, int]:
        """The axes of the rows and the columns in a tensor of images."""
        return (1, 2) if self.channel_axis == 3 else (2, 3)

    @property
    def is_cut(self) -> bool:
        """Whether every part has at least one pixel."""
        rows, columns = self.grid.tiles
        return self.height >= rows and self.width >= columns

    def tile(self, part: int) -> Box:
        """Return the tile of a part."""
        rows, columns = self.grid.tiles
        row, column = divmod(part, columns)
        return Box(deal(self.height, rows)[row], deal(self.width, columns)[column])

    @property
    def tiles(self) -> list[Box]:
        """The tiles of all parts, in their order."""
        return [self.tile(part) for part in range(self.grid.model)]

    @property
    def bounds(self) -> Box:
        """All of the plane."""
        return Box(Interval(0, self.height), Interval(0, self.width))

    @property
    def local_tile(self) -> Box:
        """The tile of this rank."""
        return self.tile(self.grid.part)

    def __str__(self) -> str:
        rows, columns = self.grid.tiles
        cut = f"{rows} strips" if columns == 1 else f"{rows} x {columns} tiles"
        return f"{self.height} x {self.width} in {cut}"
