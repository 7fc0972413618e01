"""The state of a Keras model and its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from ringar.elastic.comparison import Compared
from ringar.elastic.state import ObjectState
from ringar.job import place
from ringar.keras import keras_2, layer_state, share, training_state

#: Keys of variables that differ between ranks: seeds, and the counts of metrics.
_OWN = ("seed", "global seed", "metric")
#: Keys of variables that a model and its optimizer have from the beginning.
_MODEL = ("weight", "slot", "own slot")


class KerasState(ObjectState):
    """Keep a model's weights, its optimizer, and further objects.

    Random layers of a survivor go on with its seeds of the commit; a new rank has seeds of its own.

    Args:
        model: a built model.
        optimizer: its optimizer; by default that of `compile`, and those among its attributes.
        **objects: attributes of the state, such as `epoch=0, batch=0`.

    Raises:
        ValueError: the model is not built.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer | None = None,
        **objects: object,
    ) -> None:
        super().__init__(**objects)
        keras_2.refuse(model, type(self).__name__.lstrip("_"))
        if not model.built:
            raise ValueError(
                f"rank {place.rank()} | KerasState: expected a model that is built, received "
                f"{model.name!r}, which its first batch builds; give it a keras.Input, or call it "
                "on a batch"
            )
        self.model = model
        self._optimizer = optimizer
        self._variables: dict[str, np.ndarray] = {}
        for model_optimizer in self._optimizers():
            if not model_optimizer.built:
                model_optimizer.build(model.trainable_variables)

    def _optimizers(self) -> list[keras.optimizers.Optimizer]:
        optimizers = [] if self._optimizer is None else [self._optimizer]
        return optimizers or share.optimizers_of(self.model)

    def _all_variables(self) -> dict[str, Any]:
        variables = training_state.variables_of(self.model)
        if self._optimizer is not None:
            variables |= {f"own slot {i}": v for i, v in enumerate(self._optimizer.variables)}
        return variables

    def save(self) -> None:
        """Copy the objects and the variables."""
        super().save()
        self._variables = {
            key: np.array(keras.ops.convert_to_numpy(variable))
            for key, variable in self._all_variables().items()
        }

    def restore(self) -> None:
        """Give objects and variables the values that they had in the last commit."""
        super().restore()
        variables = self._all_variables()
        for key, value in self._variables.items():
            if key in variables:  # the first step makes the variables of metrics
                variables[key].assign(value)
        layer_state.refresh(self.model)

    def compared(self) -> Compared:
        """Return the settings of the optimizers, and digests of the weights."""
        return Compared.of(self.model.trainable_variables, self._optimizers())

    def packed(self) -> object:
        """Return the copies, without those that differ between ranks."""
        shared = {k: v for k, v in self._variables.items() if not k.startswith(_OWN)}
        return super().packed(), shared

    def unpack(self, packed: Any) -> None:
        """Take the copies of another rank, and keep this rank's seeds."""
        objects, variables = packed
        super().unpack(objects)
        self._variables = variables

    def layout(self) -> Mapping[str, str]:
        """Return the names of the objects, and the shapes of weights and of slots."""
        variables = self._all_variables()
        keys = [key for kind in _MODEL for key in variables if key.startswith(kind)]
        return {**super().layout(), **{key: _shape(variables[key]) for key in keys}}


def _shape(variable: Any) -> str:
    name = str(getattr(variable.dtype, "name", variable.dtype))
    return f"{name}{[int(length) for length in variable.shape]}"
