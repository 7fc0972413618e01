"""Gradients of a compiled Keras model for a replay or a simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringar.asynchronous.gradients import Gradient, Rows
from ringar.asynchronous.partition import Piece, describe, whole_values
from ringar.asynchronous.simulation import Gradients, Values
from ringar.keras import sparse


def gradients_of(
    model: keras.Model,
    batch_of: Callable[[int, int], tuple[object, ...]],
) -> Gradients:
    """Return the function of gradients that `replay` and `simulate` take, for a compiled model.

    The function depends on its arguments alone. Before each step it sets the model's trainable
    variables to the given values, and all other variables to their first values: the moving
    statistics of `BatchNormalization` do not go on. Layers such as `Dropout` draw anew for
    each worker and step. It computes the loss of `model.compute_loss`, and not a `train_step` of
    your own.

    Args:
        model: a model that is built and compiled.
        batch_of: called with a worker and a step, returns x and y, and perhaps sample weights, as
            `fit` takes them.

    Raises:
        ValueError: if the model is not built or compiled.
    """
    if not getattr(model, "compiled", False) or not model.trainable_variables:
        raise ValueError(
            "`model` must be compiled, and built, so that it has a loss and trainable variables. "
            f"Received: {model.name!r}"
        )
    return _ModelGradients(model, batch_of)


class _ModelGradients:
    """Compute gradients of a model for given values of its variables."""

    def __init__(
        self,
        model: keras.Model,
        batch_of: Callable[[int, int], tuple[object, ...]],
    ) -> None:
        self._model, self._batch_of = model, batch_of
        self._pieces: list[list[Piece]] = []
        self._variables = list(model.trainable_variables)
        of_metrics = {id(variable) for metric in model.metrics for variable in metric.variables}
        self._state = [
            (variable, _array(variable))
            for variable in model.non_trainable_variables
            if id(variable) not in of_metrics
        ]
        # A trace per shape of a batch: one for any shape could compute other bits than these.
        self._gradients = tf.function(self._trace, autograph=False)

    def __call__(self, worker: int, step: int, values: Values) -> list[list[Gradient]]:
        """Return the gradients of a worker's step, a list per shard."""
        self._pieces = self._pieces or _consecutive(self._variables, values)
        for variable, value in zip(
            self._variables, whole_values(self._pieces, values), strict=True
        ):
            variable.assign(value)
        self._reset(worker, step)
        batch = tf.nest.map_structure(tf.convert_to_tensor, tuple(self._batch_of(worker, step)))
        computed = [_as_arrays(gradient) for gradient in self._gradients(*batch)]
        return [
            [piece.of_gradient(computed[piece.variable]) for piece in pieces]
            for pieces in self._pieces
        ]

    def _trace(self, x: Any, y: Any = None, sample_weight: Any = None) -> list[Any]:
        model = self._model
        options = {"training": True} if model._call_has_training_arg else {}
        with tf.GradientTape() as tape:
            outputs = model(x, **options)
            loss = model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self._variables)
        return [
            sparse.merged(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient
            for gradient in gradients
        ]

    def _reset(self, worker: int, step: int) -> None:
        """Set all other state to its beginning, and random seeds to those of the step."""
        for index, (variable, value) in enumerate(self._state):
            if "seed_generator_state" in variable.name:
                seeds = np.random.SeedSequence([int(value[0]), index, worker, step])
                value = seeds.generate_state(len(value)).astype(value.dtype)
            variable.assign(value)


def _consecutive(variables: Sequence[Any], values: Values) -> list[list[Piece]]:
    """Return the pieces of shards whose arrays are, one after the other, the variables.

    Args:
        variables: the variables.
        values: arrays per shard: whole variables, or consecutive rows of them.

    Raises:
        ValueError: if the shapes do not fit.
    """
    layout, index, row = [], 0, 0
    for of_shard in values:
        pieces = []
        for value in of_shard:
            shape = tuple(variables[index].shape) if index < len(variables) else None
            rows = value.shape[0] if value.ndim else 1
            length = 1 if shape == () else shape[0] if shape else 0
            if shape is None or value.shape[1:] != shape[1:] or row + rows > length:
                raise ValueError(
                    "The arrays of the shards must be the trainable variables, in their order, "
                    f"whole or cut by rows. Received: shape {value.shape} "
                    f"where {'no variable is' if shape is None else f'{shape} is'} expected"
                )
            pieces.append(Piece(index, row, row + rows, describe(variables[index])))
            row += rows
            if row == length:
                index, row = index + 1, 0
        layout.append(pieces)
    return layout


def _as_arrays(gradient: Any) -> Gradient:
    if isinstance(gradient, tf.IndexedSlices):
        return Rows(gradient.indices.numpy().astype(np.int64), gradient.values.numpy())
    array: np.ndarray | None = None if gradient is None else gradient.numpy()
    return array


def _array(variable: keras.Variable) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(variable))
