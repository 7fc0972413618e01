"""Rectangles of tensors of images: cut out, sent as one vector, put together, added in place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import tensorflow as tf

from ringar.sharding.planes import Box, Interval, Plane

_OTHER_EXAMPLES = (
    "The number of examples must be the same on every rank of a model group. Received: tiles with "
    "more or fewer examples than this rank has. Share the data with "
    "ringar.data.shard(dataset, grid=grid)."
)


class Pieces:
    """Cut and assemble pieces of tensors that have the examples and channels of one tensor.

    Args:
        like: a tensor of images.
        plane: the plane of which `like` is a tile, or all.
    """

    def __init__(self, like: tf.Tensor, plane: Plane) -> None:
        self.rows, self.columns = plane.axes
        self._channels = plane.channel_axis
        self._static_shape = like.shape.as_list()
        self._shape = [
            tf.shape(like)[axis] if size is None else size
            for axis, size in enumerate(self._static_shape)
        ]
        self.dtype = like.dtype

    def cut(self, x: tf.Tensor, box: Box) -> tf.Tensor:
        """Return a rectangle of `x`."""
        index = [slice(None)] * 4
        index[self.rows], index[self.columns] = box.rows.slice, box.columns.slice
        return x[tuple(index)]

    def numbers(self, areas: Sequence[int]) -> tf.Tensor:
        """Return the count of numbers in each of some pieces, given their areas in pixels."""
        numbers_per_pixel = tf.cast(self._shape[0] * self._shape[self._channels], tf.int64)
        return tf.constant(list(areas), tf.int64) * numbers_per_pixel

    def pack(self, pieces: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return pieces as one vector."""
        if not pieces:
            return tf.zeros([0], self.dtype)
        return tf.concat([tf.reshape(piece, [-1]) for piece in pieces], 0)

    def unpack(self, vector: tf.Tensor, boxes: Sequence[Box]) -> list[tf.Tensor]:
        """Return the pieces of a vector."""
        if not boxes:
            return []
        vectors = tf.split(vector, self.numbers([box.area for box in boxes]), num=len(boxes))
        return [self._shaped(piece, box) for piece, box in zip(vectors, boxes, strict=True)]

    def join(self, pieces: Sequence[tf.Tensor | None], columns: int) -> tf.Tensor:
        """Put together pieces that lie in rows of `columns`; None stands for an empty one."""
        strips = [
            [piece for piece in pieces[start : start + columns] if piece is not None]
            for start in range(0, len(pieces), columns)
        ]
        return _concat([_concat(strip, self.columns) for strip in strips if strip], self.rows)

    def add(self, pieces: Sequence[tuple[Box, tf.Tensor]], frame: Box) -> tf.Tensor:
        """Return a tensor of the size of `frame`, with the sum of the pieces at their places.

        Rows are cut where a piece begins or ends, so that only rows with several pieces are added.
        """
        ends = {end for box, _ in pieces for end in box.rows}
        marks = sorted({0, frame.rows.size} | ends)
        strips = []
        for start, stop in pairwise(marks):
            addends = [
                self._widened(piece, box, Interval(start, stop), frame.columns.size)
                for box, piece in pieces
                if box.rows.start <= start and stop <= box.rows.stop
            ]
            zeros = Box(Interval(start, stop), Interval(0, frame.columns.size))
            strips.append(tf.add_n(addends) if addends else self._zeros(zeros))
        return _concat(strips, self.rows)

    def _widened(self, piece: tf.Tensor, box: Box, rows: Interval, width: int) -> tf.Tensor:
        """Return rows of a piece, with zeros beside it up to the width of the whole."""
        strip = Box(rows.seen_from(box.rows.start), Interval(0, box.columns.size))
        padding = [[0, 0] for _ in range(4)]
        padding[self.columns] = [box.columns.start, width - box.columns.stop]
        part = self.cut(piece, strip)
        return tf.pad(part, padding) if any(padding[self.columns]) else part

    def _shape_of(self, box: Box) -> tuple[list[int | tf.Tensor], list[int | None]]:
        shape, static = list(self._shape), list(self._static_shape)
        for axis, size in ((self.rows, box.rows.size), (self.columns, box.columns.size)):
            shape[axis] = static[axis] = size
        return shape, static

    def _shaped(self, vector: tf.Tensor, box: Box) -> tf.Tensor:
        shape, static = self._shape_of(box)
        return tf.ensure_shape(tf.reshape(vector, shape), static)

    def _zeros(self, box: Box) -> tf.Tensor:
        return tf.zeros(self._shape_of(box)[0], self.dtype)


def checked(vector: tf.Tensor, received: tf.Tensor, expected: tf.Tensor) -> tf.Tensor:
    """Return a vector that ranks have sent, after a comparison of its sizes with those expected.

    A reshape would raise an error that says less, or none where ranks with more examples and ranks
    with fewer make up for each other.
    """
    fits = tf.debugging.assert_equal(received, expected, _OTHER_EXAMPLES)
    with tf.control_dependencies([] if fits is None else [fits]):  # None: it has been compared
        return tf.identity(vector)


def _concat(tensors: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis)
