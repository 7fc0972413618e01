"""Losses that are no mean over rows, made those of the global batch.

Gradients are averaged with the rows of each rank as weights (`ringar.keras.share`). Four kinds of
losses have another normalizer: a loss of masked values (the values that are left), the reduction
"mean_with_sample_weight" (the sum of the weights), the reduction "sum" (1), and the reduction None
in Keras' own `train_step` (1: the gradient of a vector is that of its sum). In a `train_step`
such a loss is global: one small allreduce adds up numerators and normalizers of all ranks, every
rank returns the value of the global batch, and the gradient is scaled so that the average weighted
by rows is right. A rank knows from the program alone whether a loss is global, and all ranks run
the same program.

A loss that is not reduced keeps the values of its rank; only the gradient is that of all ranks. In
a `train_step` of the user it may become any reduction later, and counts as a mean over rows.

Terms that no `keras.losses.Loss` computes count as means over rows. That is right for regularizers
of weights, which do not depend on the batch, and for an `add_loss` that is a mean.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf

from ringar.collectives import Average, Sum, allreduce
from ringar.collectives.compiled import is_compiling
from ringar.job.process_sets import ProcessSet
from ringar.keras import loss_rows, share

_MEANS = ("mean", "sum_over_batch_size", "mean_with_sample_weight")
_UNREDUCED = (None, "none")


def install() -> None:
    """Override the call of `keras.losses.Loss`, once."""
    loss_rows.install()
    call = keras.losses.Loss.__call__
    if hasattr(call, "_ringar"):
        return

    @functools.wraps(call)
    def loss(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return of_global_batch(
            self, call(self, y_true, y_pred, sample_weight), y_pred, sample_weight
        )

    loss._ringar = True  # type: ignore[attr-defined]
    keras.losses.Loss.__call__ = loss


def of_global_batch(loss: Any, value: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Return the value of a loss: this rank's if it is a mean over rows, or that of all ranks."""
    step = share.current()
    if step is None:
        loss_rows.note(y_pred)
        return value
    exchange = step.exchange
    if exchange is None or exchange.is_alone:
        return value
    if exchange.op is not Average or not exchange.in_every_step:
        return value
    is_unreduced = loss.reduction in _UNREDUCED
    if is_unreduced and not step.is_of_keras:
        return value
    normalizer = _normalizer(loss, y_pred, sample_weight, value)
    if normalizer is None:
        return value
    name = f"loss/term_{step.terms}"
    step.terms += 1
    own = share.rows()
    own = tf.cast(own if isinstance(own, tf.Tensor) or own >= 0 else 1.0, value.dtype)
    numerator = value * tf.stop_gradient(normalizer)
    zero = tf.zeros([], value.dtype)
    total, divisor, of_all, _ = tf.unstack(
        _add_up([tf.reduce_sum(numerator), normalizer, own, zero], name, exchange.ranks)
    )
    # A sum is divided by nothing, and so is the sum of sums.
    divisor = divisor if loss.reduction in _MEANS else tf.ones_like(divisor)
    result = value if is_unreduced else tf.math.divide_no_nan(total, divisor)
    scale = tf.math.divide_no_nan(of_all, own * divisor)
    numbers = functools.partial(tf.constant, [0.0, 0.0, 0.0, 1.0], value.dtype)
    step.records.append(
        share.Record(
            lambda: _add_up(tf.unstack(numbers()), name, exchange.ranks)[3], is_compiling(), True
        )
    )
    ours = numerator * tf.stop_gradient(scale)
    return ours + tf.stop_gradient(result - ours)


def _add_up(values: list[tf.Tensor], name: str, ranks: ProcessSet | None) -> tf.Tensor:
    numbers = tf.stop_gradient(tf.stack(values))
    return allreduce(numbers, Sum, name=name, process_set=ranks)


def _normalizer(loss: Any, y_pred: Any, sample_weight: Any, value: Any) -> tf.Tensor | None:
    """Return what a loss was divided by, if that is no number of rows; None: it is one."""
    if loss.reduction not in _MEANS:
        return tf.ones([], value.dtype)
    mask = getattr(y_pred, "_keras_mask", None)
    weighted = loss.reduction == "mean_with_sample_weight" and sample_weight is not None
    if mask is None and not weighted:
        return None
    valid = None if mask is None else tf.cast(mask, value.dtype)
    if not weighted:
        return tf.reduce_sum(valid)
    weights = tf.cast(sample_weight, value.dtype)
    if valid is None:
        return tf.reduce_sum(weights)
    if weights.shape.rank == valid.shape.rank + 1:
        weights = tf.squeeze(weights, -1)
    elif valid.shape.rank == weights.shape.rank + 1:
        weights = tf.expand_dims(weights, -1)
    return tf.reduce_sum(valid * weights)
