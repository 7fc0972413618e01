"""The communication of the ranks of a model group, forward and backward.

The loss of a model group is one number. Behind a join every rank of the group computes it from the
same values and holds the whole gradient. Within a split a rank's gradient is the contribution of
its own kernels. Each function here is a pair of a forward and a backward step that keeps these
rules (n parts, K bytes in one part's channels; bytes are those that a rank sends):

    function         forward                        backward
    channels         all-gather,     (n-1) K        reduce-scatter, (n-1) K
    replica          nothing                        allreduce of the gradient
    examples         all-gather,     (n-1) K        reduce-scatter, (n-1) K
    gather           all-gather,     (n-1) K        nothing: a rank takes its own part
    add              allreduce                      nothing
    return_examples  all-to-all, (n-1)/n K          all-to-all, (n-1)/n K

`examples` and `return_examples` enclose a part of the model in which each rank computes for the
examples of all ranks of the group. Outside, a rank's gradients are those of the mean loss of its
own examples; inside, those of the mean loss of the group. The gradient is therefore divided by n
where it enters that part and multiplied by n where it leaves.

Channels are the channels of images, or the units of a dense layer: one axis of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from ringar.collectives import Sum, allgather, allreduce, alltoall
from ringar.sharding.grid import Grid

Backward = Callable[[tf.Tensor], tf.Tensor]
"""From the gradient of a function's output to that of its input."""


def channels(x: tf.Tensor, axis: int, grid: Grid, name: str) -> tf.Tensor:
    """Return the channels of all parts, joined along `axis`; `x` has this rank's channels."""
    if grid.model == 1:
        return x
    return _join(allgather(x, name=name, process_set=grid.model_set), axis, grid.model, x.shape)


def replica(x: tf.Tensor, grid: Grid, name: str) -> tf.Tensor:
    """Return `x`, which every part has whole; the backward pass sums its gradient."""
    if grid.model == 1:
        return x

    def backward(upstream: tf.Tensor) -> tf.Tensor:
        return allreduce(upstream, Sum, name=f"{name}/gradient", process_set=grid.model_set)

    return with_gradient(x, tf.identity, backward)


def examples(x: tf.Tensor, grid: Grid, name: str) -> tf.Tensor:
    """Return the examples of all ranks of the group, in the order of their parts."""
    if grid.model == 1:
        return x
    gathered = allgather(x, name=name, process_set=grid.model_set)
    gathered.set_shape(_with_rows(x.shape, grid.model))
    return scale_gradient(gathered, grid.model)


def gather(x: tf.Tensor, axis: int, grid: Grid, name: str) -> tf.Tensor:
    """Return the channels of all parts; all ranks then compute the same."""
    if grid.model == 1:
        return x
    return with_gradient(
        x,
        lambda x: channels(x, axis, grid, name),
        lambda upstream: tf.split(upstream, grid.model, axis)[grid.part],
    )


def add(x: tf.Tensor, grid: Grid, name: str) -> tf.Tensor:
    """Return the sum over the parts; all ranks then compute the same."""
    if grid.model == 1:
        return x
    return with_gradient(
        x,
        lambda x: allreduce(x, Sum, name=name, process_set=grid.model_set),
        lambda upstream: upstream,
    )


def return_examples(x: tf.Tensor, axis: int, grid: Grid, name: str) -> tf.Tensor:
    """Return all channels of this rank's examples, from this rank's channels of all examples."""
    if grid.model == 1:
        return x
    parts = grid.model
    x = scale_gradient(x, 1 / parts)
    received = alltoall(x, name=name, process_set=grid.model_set)
    rows = x.shape[0]
    shape = tf.TensorShape([None if rows is None else rows // parts]).concatenate(x.shape[1:])
    return _join(received, axis, parts, shape)


def _join(rows: tf.Tensor, axis: int, parts: int, shape: tf.TensorShape) -> tf.Tensor:
    """Join the parts of `rows` along `axis`; they have this shape and follow along axis 0."""
    axis %= shape.rank
    dims = [-1 if dim is None else dim for dim in shape]
    if axis == 0:
        return rows
    if dims.count(-1) > 1:
        sizes = tf.shape(rows)
        dims = [sizes[0] // parts, *(sizes[i] for i in range(1, shape.rank))]
    order = [*range(1, axis + 1), 0, *range(axis + 1, shape.rank + 1)]
    joined = tf.transpose(tf.reshape(rows, [parts, *dims]), order)
    joined = tf.reshape(joined, [*dims[:axis], parts * shape[axis], *dims[axis + 1 :]])
    joined.set_shape([*shape[:axis], parts * shape[axis], *shape[axis + 1 :]])
    return joined


def _with_rows(shape: tf.TensorShape, times: int) -> tf.TensorShape:
    rows = None if shape[0] is None else shape[0] * times
    return tf.TensorShape([rows]).concatenate(shape[1:])


def scale_gradient(x: tf.Tensor, factor: float) -> tf.Tensor:
    """Return `x`; the backward pass multiplies its gradient by `factor`."""
    return with_gradient(
        x, tf.identity, lambda upstream: upstream * tf.cast(factor, upstream.dtype)
    )


def with_gradient(
    x: tf.Tensor, forward: Callable[[tf.Tensor], tf.Tensor], backward: Backward
) -> tf.Tensor:
    """Return `forward(x)`, whose backward pass is `backward`."""

    @tf.custom_gradient
    def call(x: tf.Tensor) -> tuple[tf.Tensor, Backward]:
        return forward(x), backward

    return call(x)
