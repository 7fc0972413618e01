"""Dice and Tversky losses over the rows of a batch, as functions of sums over rows.

With `axis=None`, or an axis of rows among `axis`, both losses are ratios of three sums: of the
products of targets and predictions, of the targets, of the predictions. The loss of the global
batch is the ratio of the ranks' sums, and no mean of the ranks' losses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses.loss import squeeze_or_expand_to_same_rank

Ratio = Callable[[tf.Tensor], tf.Tensor]
"""A function of the three sums, stacked along the first axis, that returns the loss's values."""


def ratio_of(loss: Any) -> Ratio | None:
    """Return the ratio of sums over rows that a loss is; None if it is none.

    Args:
        loss: a `keras.losses.Loss`.
    """
    function, options = getattr(loss, "fn", None), getattr(loss, "_fn_kwargs", {})
    make = _RATIOS.get(getattr(function, "__name__", ""))
    is_of_keras = getattr(function, "__module__", "").startswith("keras.")
    if make is None or not is_of_keras or not _is_over_rows(options.get("axis")):
        return None
    return make(**{name: value for name, value in options.items() if name != "axis"})


def sums_of(loss: Any, y_true: Any, y_pred: Any) -> tf.Tensor:
    """Return the three sums over the rows of this rank.

    Args:
        loss: a loss that is a ratio of sums.
        y_true: the targets.
        y_pred: the predictions.
    """
    y_pred = tf.convert_to_tensor(y_pred)
    y_pred = tf.cast(y_pred, loss.dtype)
    y_true, y_pred = squeeze_or_expand_to_same_rank(tf.cast(y_true, loss.dtype), y_pred)
    axis = loss._fn_kwargs.get("axis")
    return tf.stack([tf.reduce_sum(part, axis) for part in (y_true * y_pred, y_true, y_pred)])


def _is_over_rows(axis: Any) -> bool:
    return axis is None or 0 in (axis if isinstance(axis, list | tuple) else (axis,))


def _dice() -> Ratio:
    def values(sums: tf.Tensor) -> tf.Tensor:
        overlap, true, predicted = tf.unstack(sums)
        return 1 - 2 * overlap / (true + predicted + keras.config.epsilon())

    return values


def _tversky(alpha: float = 0.5, beta: float = 0.5) -> Ratio:
    def values(sums: tf.Tensor) -> tf.Tensor:
        overlap, true, predicted = tf.unstack(sums)
        misses = alpha * (true - overlap) + beta * (predicted - overlap)
        return 1 - overlap / (overlap + misses + keras.config.epsilon())

    return values


_RATIOS: dict[str, Callable[..., Ratio]] = {"dice": _dice, "tversky": _tversky}
