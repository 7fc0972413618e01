"""Variables of one rank alone: their gradients are not reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ringar.horovod.tensorflow.place_ops import size_op
from ringar.job.process_sets import ProcessSet
from ringar.keras.first_step import of_tensorflow


class LocalVariables:
    """Hold the variables whose gradients stay on this rank.

    Args:
        process_set: the ranks that reduce the gradients of other variables.
        scale: divide the gradients of local variables by the number of these ranks. An average
            of the losses has that factor, and so all variables have one learning rate.
    """

    def __init__(self, process_set: ProcessSet, scale: bool) -> None:
        self._process_set, self._scale = process_set, scale
        self._variables: dict[int, Any] = {}  # the variables stay, so that no other gets their id

    def register(self, variable: Any) -> None:
        """Keep the gradients of `variable`, of TensorFlow or Keras, on this rank."""
        tensor_variable = of_tensorflow(variable)
        self._variables[id(tensor_variable)] = tensor_variable

    def has(self, variable: Any) -> bool:
        """Return whether a variable is one of them."""
        return id(of_tensorflow(variable)) in self._variables

    def reduce(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        reduce: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
    ) -> list[Any]:
        """Reduce the gradients of variables that are not local, and scale the others."""
        if not self._variables:
            return list(reduce(gradients, variables))
        shared = [i for i, variable in enumerate(variables) if not self.has(variable)]
        results = [self._scaled(gradient) for gradient in gradients]
        if shared:
            reduced = reduce([gradients[i] for i in shared], [variables[i] for i in shared])
            for index, gradient in zip(shared, reduced, strict=True):
                results[index] = gradient
        return results

    def _scaled(self, gradient: Any) -> Any:
        if gradient is None or not self._scale:
            return gradient
        ranks = tf.cast(size_op(self._process_set.process_set_id or 0), gradient.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values / ranks
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / ranks
