"""The variables of a shard and their optimizer: an update by any optimizer of Keras."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringar.asynchronous.gradients import Gradient, Kind, Rows
from ringar.keras.optimizer import is_distributed
from ringar.keras.optimizer_copy import decay_as
from ringar.sharding.slots import with_nested

_ALIGNMENT = 64
"""Bytes to whose multiples TensorFlow's kernels expect memory to be aligned."""
_LEAST_SHARED = 1 << 16
"""The least bytes for which a tensor uses an array's memory; a copy of fewer is faster."""


class Variables:
    """Hold variables, and update them by an optimizer of their own.

    Args:
        values: the values to begin with.
        optimizer: an optimizer of Keras that is not built.
        names: the variables' names, as in the model.
        traced: whether an update is a `tf.function`, which needs a free thread of TensorFlow's
            pool. Otherwise its ops run one by one, in the caller's thread.
        originals: the model's variables, whose rows these are; their constraints hold here, too.

    Attributes:
        follows_schedule: whether the optimizer computes its learning rate, which cannot be set.
    """

    def __init__(
        self,
        values: Sequence[np.ndarray],
        optimizer: keras.optimizers.Optimizer,
        names: Sequence[str],
        traced: bool = True,
        originals: Sequence[keras.Variable] = (),
    ) -> None:
        _check(optimizer)
        names = names or [f"variable_{index}" for index in range(len(values))]
        if len(names) != len(values):
            raise ValueError(
                "`names` must have a name per array of `values`. "
                f"Received: {len(names)} names, {len(values)} arrays"
            )
        self.optimizer, self._traced = optimizer, traced
        self.follows_schedule = not isinstance(optimizer._learning_rate, keras.Variable)
        with tf.init_scope():
            self._variables = [_variable(*pair) for pair in zip(values, names, strict=True)]
            optimizer.build(self._variables)
        if originals:
            _attach(optimizer, self._variables, originals)
        self.kinds = [
            Kind(name, tuple(value.shape), np.asarray(value).dtype)
            for name, value in zip(names, values, strict=True)
        ]
        # A user's optimizer might keep a gradient itself in a slot, so it gets copies.
        self._is_of_keras = all(
            type(part).__module__.startswith("keras.") for part in with_nested(optimizer)
        )
        self._updates: dict[tuple[type, ...], Callable[..., None]] = {}

    def values(self) -> list[np.ndarray]:
        """Return copies of the variables."""
        return [_array(variable) for variable in self._variables]

    def arrays(self) -> list[np.ndarray]:
        """Return arrays on the variables' memory, which the next update may change."""
        return [np.asarray(tf.convert_to_tensor(variable)) for variable in self._variables]

    def slots(self) -> list[np.ndarray]:
        """Return copies of the optimizer's variables, its counter and learning rate included."""
        return [_array(variable) for variable in self.optimizer.variables]

    def assign(self, values: Sequence[np.ndarray], slots: Sequence[np.ndarray]) -> None:
        """Set the variables and the optimizer's variables."""
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)
        for variable, value in zip(self.optimizer.variables, slots, strict=True):
            variable.assign(value)

    def take_averages(self) -> bool:
        """Set the variables to their moving averages (`use_ema`); return whether there are any."""
        averaging = [part for part in with_nested(self.optimizer) if part.use_ema]
        for part in averaging:
            part.finalize_variable_values(part._trainable_variables)
        return bool(averaging)

    def update(self, gradients: Sequence[Gradient], factor: float) -> None:
        """Take a step of the optimizer.

        Args:
            gradients: the gradients, which fit the variables.
            factor: multiplies the learning rate in this step.
        """
        types = tuple(type(gradient) for gradient in gradients)
        if types not in self._updates:
            self._updates[types] = self._trace(types)
        tensors = []
        for gradient in gradients:
            if isinstance(gradient, Rows):
                tensors += [self._tensor(gradient.indices), self._tensor(gradient.values)]
            elif gradient is not None:
                tensors.append(self._tensor(gradient))
        self._updates[types](tf.constant(factor, tf.float32), *tensors)

    def _tensor(self, array: np.ndarray) -> tf.Tensor:
        """Return a tensor on the memory of an array; on a copy where that could do harm."""
        is_aligned = array.ctypes.data % _ALIGNMENT == 0 and array.flags.c_contiguous
        is_number = array.dtype.kind in "fiu"
        if array.nbytes < _LEAST_SHARED or not (is_number and is_aligned and self._is_of_keras):
            return tf.constant(array)
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())

    def _trace(self, types: Sequence[type]) -> Callable[..., None]:
        """Return the step for gradients of these types: as a rule there is one."""
        variables = [
            variable
            for variable, its_type in zip(self._variables, types, strict=True)
            if its_type is not type(None)
        ]
        are_rows = [its_type is Rows for its_type in types if its_type is not type(None)]
        signature = [tf.TensorSpec([], tf.float32)]
        for variable, is_sparse in zip(variables, are_rows, strict=True):
            shape = list(variable.shape)
            if is_sparse:
                signature.append(tf.TensorSpec([None], tf.int64))
                shape[0] = None
            signature.append(tf.TensorSpec(shape, variable.dtype))

        def step(factor: tf.Tensor, *tensors: tf.Tensor) -> None:
            parts = iter(tensors)
            gradients = [
                _slices(next(parts), next(parts), variable) if is_sparse else next(parts)
                for variable, is_sparse in zip(variables, are_rows, strict=True)
            ]
            with _rate_times(self.optimizer, factor):
                if gradients:
                    self.optimizer.apply(gradients, variables)
                else:
                    self.optimizer._iterations.assign_add(1)  # Keras would not count this step

        if not self._traced:
            return step
        traced: Callable[..., None] = tf.function(step, input_signature=signature, autograph=False)
        return traced


def _check(optimizer: keras.optimizers.Optimizer) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer) or is_distributed(optimizer):
        raise ValueError(
            "`optimizer` must be an optimizer of Keras that is not distributed. "
            f"Received: {optimizer!r}"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "`optimizer` must not scale the loss: workers do, and push gradients without the "
            "scale. Pass its `inner_optimizer`. Received: a LossScaleOptimizer"
        )
    if optimizer.built:
        raise ValueError(
            "`optimizer` must not be built: a shard has an optimizer of its own. Pass "
            "`type(optimizer).from_config(optimizer.get_config())`. Received: a built one"
        )


def _variable(value: np.ndarray, name: str) -> keras.Variable:
    variable = keras.Variable(value, dtype=value.dtype.name, name=name.rpartition("/")[2])
    # Some optimizers select variables by path, which Keras makes from its scopes.
    variable._path = name
    return variable


def _attach(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[Any], originals: Sequence[Any]
) -> None:
    """Give variables the constraints and exclusions of the model's."""
    for variable, original in zip(variables, originals, strict=True):
        variable.constraint = getattr(original, "constraint", None)
    decay_as(optimizer, variables, originals)


def _array(variable: keras.Variable) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(variable))


def _slices(indices: tf.Tensor, values: tf.Tensor, variable: keras.Variable) -> tf.IndexedSlices:
    return tf.IndexedSlices(values, indices, tf.constant(list(variable.shape), tf.int64))


@contextmanager
def _rate_times(optimizer: Any, factor: tf.Tensor) -> Iterator[None]:
    """Multiply the learning rate by `factor` for the ops of the body.

    To scale the gradients would not do: Adam and others do not depend on their scale.
    """
    rate = keras.ops.convert_to_tensor(optimizer.learning_rate)
    scaled = rate * tf.cast(factor, rate.dtype)
    former = optimizer._learning_rate
    # Bypass Keras' __setattr__, which tracks attributes.
    object.__setattr__(optimizer, "_learning_rate", lambda *_: scaled)
    try:
        yield
    finally:
        object.__setattr__(optimizer, "_learning_rate", former)
