"""Derivatives of a minimum, maximum or product over the ranks.

The gradients of allreduce and reduce-scatter share them. A sum needs none: its derivatives are 1.
"""

from __future__ import annotations

import tensorflow as tf

from ringar.collectives.tensors import Backward
from ringar.job import process_sets


def derivatives(back: Backward, results: list[tf.Tensor] | None = None) -> list[tf.Tensor]:
    """Return the derivatives of the reduced tensors with respect to this rank's inputs.

    Args:
        back: a reduction by min, max or product.
        results: the reduced tensors, if this rank has all of them.
    """
    if back.call.op == "product":
        return _derivatives_of_product(back)
    return _derivatives_of_extremum(back, results)


def _derivatives_of_extremum(back: Backward, results: list[tf.Tensor] | None) -> list[tf.Tensor]:
    """Return 1 where this rank holds the extremum, and an equal share where ranks tie."""
    call, extremes = back.call, results
    if extremes is None or call.wire or (call.prescale, call.postscale) != (1.0, 1.0):
        # Reduce again instead of scaling the inputs: compiled code may round the products
        # differently. Do not narrow: a rounded extremum equals no rank's input.
        flipped = {"min": "max", "max": "min"}
        op = flipped[call.op] if call.prescale < 0 else call.op
        extremes = back.run("allreduce", back.inputs, op=op, wire="")
    holds = [tf.cast(tf.equal(x, e), x.dtype) for x, e in zip(back.inputs, extremes, strict=True)]
    holders = back.run("allreduce", holds, wire="")
    scale = call.prescale * call.postscale
    return [
        h / tf.maximum(n, tf.ones([], n.dtype)) * scale for h, n in zip(holds, holders, strict=True)
    ]


def _derivatives_of_product(back: Backward) -> list[tf.Tensor]:
    """Return the product of the other ranks' inputs, without a division, which fails at 0."""
    call = back.call
    stacked = [tf.expand_dims(x * call.prescale, 0) for x in back.inputs]
    derivatives = []
    for part, everyone in zip(stacked, back.run("allgather", stacked), strict=True):
        ranks = tf.shape(everyone)[0]
        # All ranks hold the same rows; row r is rank r's.
        is_peer = tf.range(ranks) != process_sets.rank_in(call.process_set)
        mask = tf.reshape(is_peer, tf.concat([[ranks], tf.ones([tf.rank(part) - 1], tf.int32)], 0))
        factors = tf.where(mask, everyone, tf.ones([], everyone.dtype))
        derivatives.append(tf.reduce_prod(factors, axis=0) * (call.prescale * call.postscale))
    return derivatives
