"""Objects that stand for variables in an optimizer of Keras, and are read as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


class StandIn:
    """Convert to the tensor that `read` returns, and take TensorFlow's operators."""

    @property
    def dtype(self) -> str:
        """The dtype, as Keras spells it."""
        raise NotImplementedError

    def read(self) -> tf.Tensor:
        """Return the value."""
        raise NotImplementedError

    def assign(self, value: Any) -> None:
        """Take a value."""
        raise NotImplementedError

    def assign_add(self, value: Any) -> None:
        """Add to the value."""
        self.assign(self.read() + tf.cast(value, self.dtype))

    def assign_sub(self, value: Any) -> None:
        """Subtract from the value."""
        self.assign(self.read() - tf.cast(value, self.dtype))

    def numpy(self) -> np.ndarray:
        """Return the value as an array."""
        return np.asarray(self.read())

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        """Convert to a tensor."""
        return tf.cast(self.read(), dtype) if dtype is not None else self.read()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy().astype(dtype) if dtype is not None else self.numpy()


def _overload(operator: str) -> None:
    def apply(self: StandIn, *operands: Any) -> Any:
        values = (o.read() if isinstance(o, StandIn) else o for o in operands)
        return getattr(self.read(), operator)(*values)

    apply.__name__ = operator
    setattr(StandIn, operator, apply)


# As TensorFlow gives its variables the operators of tensors.
for _operator in tf.Tensor.OVERLOADABLE_OPERATORS - {"__eq__", "__ne__"}:
    _overload(_operator)
