"""Gathered weights that a graph does not keep between the forward and the backward pass.

The backward pass of a layer reads the weights, and would keep them from the forward pass on. So its
ops are given the results of a second all-gather instead. The values are the same, bit for bit: a
weight whose readers cannot be redirected only lives longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

#: Ops that only change the form of a weight. Their results are made again for the backward pass.
_VIEWS = {"Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient", "Transpose"}


def place() -> int:
    """Return a number between those of the ops before and after this place in a graph."""
    op: Any = tf.no_op()
    return int(op._id)


def redirect(old: tf.Tensor, new: tf.Tensor, since: int) -> int:
    """Let ops that were added after `since` read `new` in the place of `old`.

    Args:
        old: a tensor of the forward pass.
        new: an equal tensor, of an op that comes before those ops.
        since: a `place` before the backward pass.

    Returns:
        The number of inputs that were redirected.
    """
    count = 0
    for op in old.consumers():
        places = [i for i, tensor in enumerate(op.inputs) if tensor is old]
        if op._id > since:
            for number in places:
                op._update_input(number, new)
                count += 1
        elif op.type in _VIEWS and places == [0] and any(_backward_reads(op.outputs[0], since)):
            copy = op.graph.create_op(
                op.type,
                [new, *list(op.inputs)[1:]],
                [op.outputs[0].dtype],
                attrs=dict(op.node_def.attr),
                name=f"{op.name.rsplit('/', 1)[-1]}_again",
            )
            copy.outputs[0].set_shape(op.outputs[0].shape)
            count += redirect(op.outputs[0], copy.outputs[0], since)
    return count


def _backward_reads(tensor: tf.Tensor, since: int) -> Iterator[bool]:
    """Yield whether consumers of a tensor, and of its views, are ops of the backward pass."""
    for op in tensor.consumers():
        yield op._id > since
        if op.type in _VIEWS:
            yield from _backward_reads(op.outputs[0], since)
