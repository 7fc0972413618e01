"""The values, weights and mask that Keras reduces to a loss.

Rows leave a loss in several ways: a mask on predictions, a mask that the loss sets on its values
(`ignore_class`), a user's `_keras_mask`, sample weights. Keras merges all of them in one function,
`reduce_weighted_values`, whose arguments are noted here.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf
from keras.src.losses import loss as keras_loss


@dataclasses.dataclass
class Parts:
    """Hold the parts from which a loss is reduced.

    Attributes:
        is_nested: whether another loss calls this one.
        values: the values before the reduction; None if a loss reduces in a way of its own.
        sample_weight: their weights, or None.
        mask: which values count; None: all.
    """

    is_nested: bool
    values: Any = None
    sample_weight: Any = None
    mask: Any = None

    def has_rows(self, *of_batch: Any) -> bool:
        """Return whether the first axis of the values is that of rows, as far as shapes tell.

        Args:
            *of_batch: targets and predictions, tensors or structures of tensors.
        """
        if self.values is None:
            return False
        rows = _rows(self.values)
        return rows is None or rows in map(_rows, tf.nest.flatten(of_batch))

    def normalizer(self, with_weights: bool, dtype: tf.DType) -> tf.Tensor | None:
        """Return the loss's divisor, or None if it is the number of values.

        Args:
            with_weights: whether the reduction divides by the sum of the weights.
            dtype: that of the loss.
        """
        weights = self.sample_weight if with_weights else None
        if self.mask is None and weights is None:
            return None
        if weights is not None:
            weights = tf.cast(weights, dtype)
        merged = keras_loss.apply_mask(weights, self.mask, dtype=dtype, reduction="sum")
        return tf.stop_gradient(tf.reduce_sum(merged))


def _rows(tensor: Any) -> int | None:
    """Return the first dimension of a tensor, None if it is not known, and 0 for a number."""
    shape = tf.TensorShape(getattr(tensor, "shape", None))
    return None if shape.rank is None else next(iter(shape.as_list()), 0)


_parts: ContextVar[Parts | None] = ContextVar("parts", default=None)


@contextmanager
def noted() -> Iterator[Parts]:
    """Note the parts of the loss that the body calls."""
    parts = Parts(is_nested=_parts.get() is not None)
    token = _parts.set(parts)
    try:
        yield parts
    finally:
        _parts.reset(token)


def noting_parts(original: Callable[..., Any]) -> Callable[..., Any]:
    """Observe the function in which Keras reduces losses."""
    signature = inspect.signature(original)

    def reduce_weighted_values(*args: Any, **kwargs: Any) -> Any:
        if (parts := _parts.get()) is not None:
            arguments = signature.bind(*args, **kwargs).arguments
            parts.values = arguments["values"]
            parts.sample_weight, parts.mask = arguments.get("sample_weight"), arguments.get("mask")
        return original(*args, **kwargs)

    return reduce_weighted_values
