"""The slice of a variable that belongs to one rank, in the form that optimizers of Keras train.

A variable of n elements on N ranks, seen flat, is cut into N slices of n/N elements, with one more
for the first ranks where a rest is left (as `ringar.reducescatter` cuts). Slices are padded with a
zero to ceil(n/N) elements, so that all ranks have slots of one shape, and none is empty.

A slice keeps no copy of the variable: it reads the variable's elements. It keeps the value that an
optimizer assigns until the ranks gather their slices into the variable, in the same branch of the
graph: a tensor cannot leave a branch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from ringar.sharding.stand_in import StandIn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringar.sharding.slice_ranks import SliceRanks


class VariableSlice(StandIn):
    """Stand in an optimizer for the slice of a variable, as if it were a variable.

    Args:
        variable: a `keras.Variable` or `tf.Variable`, of known shape.
        ranks: the ranks among which it is cut.

    Attributes:
        variable: the variable.
        ranks: the ranks among which it is cut.
        begin: the slice's first element in the flat variable.
        count: the number of elements without padding.
        elements: the number of elements of the variable.
        counts: the number of elements of every rank's slice.
        shape: the shape of the slice, `(ceil(elements / ranks),)`.
        pending: the value assigned since the last gathering; None: none.
    """

    constraint = None  # constraints are those of the whole variable
    trainable = True
    overwrite_with_gradient = False

    def __init__(self, variable: Any, ranks: SliceRanks) -> None:
        self.variable = variable
        self.ranks = ranks
        self._value: Any = variable.value if isinstance(variable, keras.Variable) else variable
        self.elements = math.prod(int(d) for d in variable.shape)
        least, rest = divmod(self.elements, ranks.size)
        self.counts = [least + (r < rest) for r in range(ranks.size)]
        self.begin, self.count = sum(self.counts[: ranks.rank]), self.counts[ranks.rank]
        self.shape = (max(self.counts[0], 1),)
        self.pending: tf.Tensor | None = None

    @property
    def name(self) -> str:
        """The variable's name, by which users exclude variables from weight decay."""
        return str(self._value.name)

    @property
    def path(self) -> str:
        """The variable's path, from which Keras makes the names of slots."""
        return str(getattr(self.variable, "path", self.name))

    @property
    def dtype(self) -> str:
        """The variable's dtype, as Keras spells it."""
        return str(keras.backend.standardize_dtype(self._value.dtype))

    @property
    def device(self) -> str:
        """The variable's device."""
        return str(self._value.device)

    @property
    def handle(self) -> tf.Tensor:
        """The variable's resource, beside which TensorFlow places slots."""
        return self._value.handle

    @property
    def _unique_id(self) -> Any:
        """The variable's own key, by which Keras finds slots and exclusions from weight decay."""
        return self._value._unique_id

    def of(self, flat: tf.Tensor) -> tf.Tensor:
        """Return this rank's slice of a flat tensor of the variable's elements."""
        return self.padded(flat[self.begin : self.begin + self.count])

    def of_array(self, array: np.ndarray) -> np.ndarray:
        """Return a copy of this rank's slice of an array of the variable's shape."""
        values = np.asarray(array).reshape(-1)[self.begin : self.begin + self.count]
        return np.pad(values, (0, self.shape[0] - self.count))

    def padded(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return `count` elements with the padding behind them."""
        padding = self.shape[0] - self.count
        tensor = tf.pad(tensor, [[0, padding]]) if padding else tensor
        return tf.ensure_shape(tensor, self.shape)

    def joined(self, padded: tf.Tensor) -> tf.Tensor:
        """Return the flat variable, given the padded slices of all ranks one after the other."""
        length = self.shape[0]
        if all(count == length for count in self.counts):
            return padded
        parts = [padded[r * length : r * length + n] for r, n in enumerate(self.counts)]
        return tf.concat(parts, 0)

    def read(self) -> tf.Tensor:
        """Return the assigned value, or else the variable's elements."""
        if self.pending is not None:
            return self.pending
        return self.of(tf.reshape(self._value, [-1]))

    def assign(self, value: Any) -> None:
        """Keep a value until the slices are gathered."""
        self.pending = tf.ensure_shape(tf.cast(value, self.dtype), self.shape)

    def __repr__(self) -> str:
        return f"<slice of {self.path}: {self.count} of {self.elements} elements>"


def wholes(variables: Sequence[Any]) -> list[Any]:
    """Return the variables whose slices are among `variables`, and the others themselves."""
    return [v.variable if isinstance(v, VariableSlice) else v for v in variables]
