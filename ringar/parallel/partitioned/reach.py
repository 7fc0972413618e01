"""The rows and columns that each tile of a layer's output reads: exact interval arithmetic.

Along one axis let a window have k taps, stride s and dilation d; it reaches over e = (k - 1) d + 1
rows. The plane has n rows. With padding "valid" there are m = floor((n - e) / s) + 1 rows of
output and p = 0 rows of padding in front; with "same" m = ceil(n / s), and, as TensorFlow has it,
p = floor(max((m - 1) s + e - n, 0) / 2). Output row o reads rows o s - p to o s - p + e - 1, so
output rows a to b - 1 read

    [a s - p, (b - 1) s - p + e)

Rows before row 0 and behind row n - 1 are padding, known without communication. The rank needs all
others. It has those of its own tile, and other ranks send it theirs: its neighbors and, where tiles
are thinner than the reach, ranks farther away. A row is sent to a rank once, whatever the number of
outputs that read it.

Columns are treated alike. A tile needs the product of its rows and columns, corners included.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ringar.sharding.planes import Box, Interval, Plane

SAME, VALID = "same", "valid"


@dataclass(frozen=True)
class Window:
    """Describe the window of a layer along one axis.

    Attributes:
        taps: the number of rows of the kernel or the pool.
        stride: the distance of the windows of two rows of output.
        dilation: the distance of two taps.
        padding: "same" or "valid".
    """

    taps: int
    stride: int = 1
    dilation: int = 1
    padding: str = VALID

    @property
    def reach(self) -> int:
        """The number of rows from the first to the last tap."""
        return (self.taps - 1) * self.dilation + 1

    def outputs(self, extent: int) -> int:
        """Return the rows of output for a plane of `extent` rows; 0 if it is too small."""
        if self.padding == SAME:
            return -(-extent // self.stride)
        return max(0, (extent - self.reach) // self.stride + 1)

    def before(self, extent: int) -> int:
        """Return the rows of padding in front of a plane of `extent` rows."""
        if self.padding == VALID:
            return 0
        return max((self.outputs(extent) - 1) * self.stride + self.reach - extent, 0) // 2

    def reads(self, outputs: Interval, extent: int) -> Interval:
        """Return the rows that rows of output read, rows of padding included."""
        start = outputs.start * self.stride - self.before(extent)
        return Interval(start, start + (outputs.size - 1) * self.stride + self.reach)

    def taps_within(self, outputs: Interval, extent: int) -> list[int]:
        """Return for each row of output the number of its taps within the plane."""
        first = self.reads(outputs, extent).start
        rows = (
            [first + o * self.stride + tap * self.dilation for tap in range(self.taps)]
            for o in range(outputs.size)
        )
        return [sum(0 <= row < extent for row in rows_of_tap) for rows_of_tap in rows]


@dataclass(frozen=True)
class Reach:
    """Describe the pixels that all tiles of a layer read.

    Attributes:
        plane: the plane that the layer reads.
        result: the plane that it writes.
        rows: its window along the rows.
        columns: its window along the columns.
    """

    plane: Plane
    result: Plane
    rows: Window
    columns: Window

    @classmethod
    def of(cls, plane: Plane, rows: Window, columns: Window) -> Reach:
        """Return the reach of a layer with these windows."""
        height, width = rows.outputs(plane.height), columns.outputs(plane.width)
        return cls(plane, dataclasses.replace(plane, height=height, width=width), rows, columns)

    def reads(self, part: int) -> Box:
        """Return the box that the windows of a part cover, padding included."""
        tile = self.result.tile(part)
        return Box(
            self.rows.reads(tile.rows, self.plane.height),
            self.columns.reads(tile.columns, self.plane.width),
        )

    def needs(self, part: int) -> Box:
        """Return the pixels of the plane that the windows of a part cover."""
        return self.reads(part).meet(self.plane.bounds)

    def padding(self, part: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the padding of a part: (top, bottom), (left, right)."""
        reads, needs = self.reads(part), self.needs(part)
        top, left = (need.start - read.start for need, read in zip(needs, reads, strict=True))
        bottom, right = (read.stop - need.stop for need, read in zip(needs, reads, strict=True))
        return (top, bottom), (left, right)

    def message(self, sender: int, receiver: int) -> Box:
        """Return the part of the sender's tile that the receiver needs, in the plane."""
        return self.needs(receiver).meet(self.plane.tile(sender))

    def pixels_sent(self, sender: int) -> int:
        """Return the number of pixels that a part sends, each once per receiver."""
        receivers = (part for part in range(self.plane.grid.model) if part != sender)
        return sum(self.message(sender, receiver).area for receiver in receivers)
