"""The ways into and out of a plane that is cut, forward and backward.

M parts, K bytes in one tile; bytes are those that a rank sends. Tiles may differ by a row or a
column, and all-gathers have uneven parts.

    function   forward                      backward
    cut        nothing                      all-gather, (M-1) K; gradients divided by M
    gather     all-gather, (M-1) K          nothing: a rank takes its tile; gradients times M
    part       nothing                      nothing: gradients times M
    mean       allreduce of B C numbers     nothing; gradients times M
    maximum    all-gather of 2 B C numbers  nothing; gradients times M

`halo` tells why there is a factor M.
"""

from __future__ import annotations

import tensorflow as tf

from ringar.collectives import allgather
from ringar.parallel import exchange
from ringar.parallel.exchange import Backward, scale_gradient, with_gradient
from ringar.parallel.partitioned.pieces import Pieces, checked
from ringar.sharding.planes import Plane


def cut(x: tf.Tensor, plane: Plane, name: str) -> tf.Tensor:
    """Return this rank's tile of images that every rank has whole."""
    parts = plane.grid.model
    if parts == 1:
        return x

    def backward(upstream: tf.Tensor) -> tf.Tensor:
        gradient = _gathered(upstream, plane, f"{name}/gradient")
        return gradient / tf.cast(parts, gradient.dtype)

    return with_gradient(x, lambda x: Pieces(x, plane).cut(x, plane.local_tile), backward)


def gather(x: tf.Tensor, plane: Plane, name: str) -> tf.Tensor:
    """Return the whole images; all ranks then compute the same."""
    parts = plane.grid.model
    if parts == 1:
        return x

    def backward(upstream: tf.Tensor) -> tf.Tensor:
        gradient = Pieces(upstream, plane).cut(upstream, plane.local_tile)
        return gradient * tf.cast(parts, gradient.dtype)

    return with_gradient(x, lambda x: _gathered(x, plane, name), backward)


def part(x: tf.Tensor, plane: Plane) -> tf.Tensor:
    """Return this rank's tile as its part of a split."""
    return scale_gradient(x, plane.grid.model)


def mean(x: tf.Tensor, plane: Plane, name: str) -> tf.Tensor:
    """Return the mean of each channel over the whole plane."""
    share = plane.local_tile.area / (plane.height * plane.width)
    local = tf.reduce_mean(x, plane.axes) * tf.cast(share, x.dtype)
    return exchange.add(scale_gradient(local, plane.grid.model), plane.grid, name)


def maximum(x: tf.Tensor, plane: Plane, name: str) -> tf.Tensor:
    """Return the maximum of each channel over the whole plane.

    Where several pixels have it, each gets an equal share of the gradient, as in `tf.reduce_max`.
    """
    grid = plane.grid
    if grid.model == 1:
        return tf.reduce_max(x, plane.axes)

    @tf.custom_gradient
    def reduce(x: tf.Tensor) -> tuple[tf.Tensor, Backward]:
        maximum = tf.reduce_max(x, plane.axes, keepdims=True)
        count = tf.reduce_sum(tf.cast(x == maximum, x.dtype), plane.axes, keepdims=True)
        rows = allgather(tf.stack([maximum, count])[None], name=name, process_set=grid.model_set)
        greatest = tf.reduce_max(rows[:, 0], 0)
        counts = tf.where(rows[:, 0] == greatest, rows[:, 1], tf.zeros([], x.dtype))
        total = tf.reduce_sum(counts, 0)

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            share = tf.reshape(upstream, tf.shape(total)) * tf.cast(grid.model, x.dtype) / total
            return tf.where(x == greatest, share, tf.zeros([], x.dtype))

        return tf.squeeze(greatest, plane.axes), backward

    return reduce(x)


def _gathered(x: tf.Tensor, plane: Plane, name: str) -> tf.Tensor:
    """Return the whole of tiles."""
    pieces = Pieces(x, plane)
    vector = allgather(pieces.pack([x]), name=name, process_set=plane.grid.model_set)
    expected = pieces.numbers([plane.height * plane.width])
    vector = checked(vector, tf.size(vector, tf.int64)[None], expected)
    return pieces.join(pieces.unpack(vector, plane.tiles), plane.grid.tiles[1])
