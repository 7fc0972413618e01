"""Losses that are no mean over rows, computed for the global batch.

Gradients are averaged with the rows of each rank as weights (`ringar.keras.share`). Five kinds of
losses have another normalizer: a loss of masked values (the values that are left), the reduction
"mean_with_sample_weight" (the sum of the weights), the reduction "sum" (1), the reduction None
in Keras' own `train_step` (1: the gradient of a vector is that of its sum), and ratios of sums over
the batch (`ringar.keras.batch_ratios`). In a `train_step` such a loss is global: one small
allreduce adds up the sums of all ranks, every rank returns the value of the global batch, and the
gradient is scaled so that the average weighted by rows is right. A rank knows from the program
alone whether a loss is global, and all ranks run the same program.

A loss that is not reduced keeps the values of its rank; only the gradient is that of all ranks. In
a `train_step` of the user, or inside another loss, it may become any reduction later, and counts as
a mean over rows.

A loss without a value for each row counts as a mean over rows, with a warning: it may as well be a
sum or a ratio. Terms that no `keras.losses.Loss` computes count as means, too. That is right for
regularizers of weights, which do not depend on the batch, and for an `add_loss` that is a mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.losses.loss import reduce_values

from ringar.collectives import Average, Sum, allreduce
from ringar.collectives.compiled import is_compiling
from ringar.job import log
from ringar.job.process_sets import or_all
from ringar.keras import batch_ratios, loss_parts, loss_rows, share
from ringar.keras.loss_parts import Parts

_MEANS = ("mean", "sum_over_batch_size", "mean_with_sample_weight")
_UNREDUCED = (None, "none")
_log = log.logger(__name__)
_warned: set[str] = set()


def of_all_ranks(call: Callable[..., Any]) -> Callable[..., Any]:
    """Let a loss be that of the global batch where it is no mean over rows."""

    def loss(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        with loss_parts.noted() as parts:
            value = call(self, y_true, y_pred, sample_weight)
        return of_global_batch(self, value, parts, y_true, y_pred)

    return loss


def of_global_batch(loss: Any, value: Any, parts: Parts, y_true: Any, y_pred: Any) -> Any:
    """Return the value of a loss: this rank's if it is a mean over rows, or that of all ranks.

    Args:
        loss: a `keras.losses.Loss`.
        value: its value for the batch of this rank.
        parts: the values, weights and mask that the value was reduced from.
        y_true: the targets.
        y_pred: the predictions.
    """
    step = share.current()
    if step is None:
        loss_rows.note(y_pred)
        return value
    exchange = step.exchange
    if exchange is None or exchange.reduction.is_alone:
        return value
    if exchange.reduction.op is not Average or not exchange.period.in_every_step:
        return value
    is_unreduced = loss.reduction in _UNREDUCED
    if is_unreduced and (parts.is_nested or not step.is_of_keras):
        return value
    ratio = batch_ratios.ratio_of(loss)
    if ratio is not None and parts.mask is None and parts.sample_weight is None:
        sums = _summand(batch_ratios.sums_of(loss, y_true, y_pred))
        if sums.shape.is_fully_defined():
            total, share_of_rank = _of_all(sums, step)
            return _scaled(_reduced(ratio(total), loss.reduction), share_of_rank, value.dtype)
    if not parts.has_rows(y_true, y_pred) or _compares_rows(loss):
        _warn(loss, step)
        return value
    summand = _summand(value)
    if is_unreduced or loss.reduction not in _MEANS:
        total, share_of_rank = _of_all(tf.reduce_sum(summand)[None], step)
        return _scaled(summand if is_unreduced else total[0], share_of_rank, value.dtype)
    normalizer = parts.normalizer(loss.reduction == "mean_with_sample_weight", summand.dtype)
    if normalizer is None:
        return value
    total, share_of_rank = _of_all(tf.stack([summand * normalizer, normalizer]), step)
    return _scaled(tf.math.divide_no_nan(total[0], total[1]), share_of_rank, value.dtype)


def _summand(value: Any) -> tf.Tensor:
    """Return `value` in a dtype for sums: 16 bits count 256 or 2,048 rows, and few weights."""
    is_narrow = value.dtype in (tf.float16, tf.bfloat16)
    return tf.cast(value, tf.float32 if is_narrow else value.dtype)


def _of_all(sums: tf.Tensor, step: share.Step) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the sums over all ranks, whose gradient is this rank's part, and its share of rows."""
    assert step.exchange is not None
    ranks, name = step.exchange.ranks, f"loss/term_{step.terms}"
    step.terms += 1
    rows = share.rows()
    rows = tf.cast(rows if isinstance(rows, tf.Tensor) or rows >= 0 else 1.0, sums.dtype)
    count, dtype = sums.shape.num_elements(), sums.dtype

    def added(numbers: tf.Tensor) -> tf.Tensor:
        return allreduce(tf.stop_gradient(numbers), Sum, name=name, process_set=ranks)

    def repeat() -> tf.Tensor:  # a rank without data adds nothing, and counts the idle ranks
        return added(tf.constant([0.0] * (count + 1) + [1.0], dtype))[-1]

    step.records.append(share.Record(repeat, is_compiling(), True))
    of_ranks = added(tf.concat([tf.reshape(sums, [-1]), [rows, 0.0]], 0))
    total = tf.reshape(of_ranks[:count], sums.shape)
    return sums + tf.stop_gradient(total - sums), rows / of_ranks[count]


def _scaled(value: tf.Tensor, share_of_rank: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return `value` as `dtype`; its gradient's average, weighted by shares, is the ranks' sum."""
    factor = tf.math.divide_no_nan(tf.ones_like(share_of_rank), share_of_rank)
    scaled = value * tf.stop_gradient(factor)
    return tf.cast(scaled + tf.stop_gradient(value - scaled), dtype)


def _reduced(values: tf.Tensor, reduction: Any) -> tf.Tensor:
    return reduce_values(values, reduction=reduction)


def _compares_rows(loss: Any) -> bool:
    """Return whether each value of a loss of Keras depends on all rows of the batch."""
    return getattr(getattr(loss, "fn", None), "__name__", "") == "circle"


def _warn(loss: Any, step: share.Step) -> None:
    assert step.exchange is not None
    if loss.name in _warned or or_all(step.exchange.ranks).rank() > 0:
        return
    _warned.add(loss.name)
    _log.warning(
        "Loss '%s' looks at the batch of a rank as a whole, and counts as a mean over its rows. A "
        "sum, a masked mean, a ratio or a comparison of rows then differs from one process: "
        "return one value per row (docs/uneven.md).",
        loss.name,
    )
