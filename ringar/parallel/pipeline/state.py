"""From the weights and optimizer states of the modules to those of the plain model, and back.

A layer belongs to one module, and its weights have the same places in it everywhere. What an
optimizer keeps for a variable is found by the variable's layer, its place there, and the rest of
the name that Keras gives it; what it keeps for none (its step, its learning rate) by its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from ringar import runtime
from ringar.collectives import allgather_object, broadcast_object
from ringar.parallel import slots
from ringar.runtime import ProcessSet

State = dict[Any, Any]


class Plain:
    """How the plain model is made again.

    Args:
        model: which is to be cut.
    """

    def __init__(self, model: keras.Model) -> None:
        self._description = json.dumps(keras.saving.serialize_keras_object(model))

    def make(self) -> keras.Model:
        """One like it, not compiled, with fresh weights."""
        description = {**json.loads(self._description), "compile_config": None}
        return keras.saving.deserialize_keras_object(description)

    def with_weights(self, network: keras.Model, ranks: ProcessSet) -> keras.Model:
        """One with the weights of all modules. Collective over the model group.

        Args:
            network: of this rank's module.
            ranks: of the model group.
        """
        model = self.make()
        own = of_layers(network.layers)
        for state in allgather_object(own, name="weights of modules", process_set=ranks):
            set_layers(model, state)
        return model


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """With which `model` was compiled, its optimizer itself among them."""
    arguments = keras.saving.deserialize_keras_object(model.get_compile_config())
    for name in ("run_eagerly", "steps_per_execution"):
        arguments.pop(name, None)
    return {**arguments, "optimizer": model.optimizer}


def gather_optimizer(
    model: keras.Model, network: keras.Model, optimizer: Any, ranks: ProcessSet
) -> None:
    """Give the plain model's optimizer the state of all modules'. Collective.

    Args:
        model: the plain model, compiled.
        network: of this rank's module.
        optimizer: of this rank's module.
        ranks: of the model group.
    """
    model.optimizer.build(model.trainable_variables)
    own = of_optimizer(optimizer, network)
    for state in allgather_object(own, name="optimizers of modules", process_set=ranks):
        set_optimizer(model.optimizer, model, state)


def on_rank_0(write: Callable[[], object]) -> None:
    """Let rank 0 write a file. Collective over all ranks.

    Raises:
        Exception: on rank 0, what `write` raises, and then an OSError on all others.
    """
    trouble = None
    if runtime.rank() == 0:
        try:
            write()
        except Exception as error:  # the other ranks wait to hear of it
            trouble = error
    said = broadcast_object(trouble and str(trouble), name="save")
    if trouble is not None:
        raise trouble
    if said:
        raise OSError(f"rank {runtime.rank()} | save: rank 0 could not write: {said}")


def of_layers(layers: Iterable[Any]) -> State:
    """The weights of layers, by the layers' names."""
    return {layer.name: layer.get_weights() for layer in layers if layer.weights}


def set_layers(model: keras.Model, state: State) -> None:
    """Give layers of a model the weights that `of_layers` has returned."""
    for layer in model.layers:
        if layer.name in state:
            layer.set_weights(state[layer.name])


def of_optimizer(optimizer: Any, model: keras.Model) -> State:
    """The variables of an optimizer that was built with the trainable variables of `model`."""
    keys = _keys(optimizer, model)
    return {
        key: np.asarray(keras.ops.convert_to_numpy(variable))
        for key, variable in zip(keys, optimizer.variables, strict=True)
    }


def set_optimizer(optimizer: Any, model: keras.Model, state: State) -> None:
    """Give an optimizer what `of_optimizer` has returned, for the variables of this model."""
    for key, variable in zip(_keys(optimizer, model), optimizer.variables, strict=True):
        if key in state:
            variable.assign(state[key])


def part_of_optimizer(optimizer: Any, variables: list[Any]) -> Any:
    """A new optimizer like this one for some of its variables, with what it keeps for them."""

    def keyed(one: Any) -> State:
        owners = slots.owners(one, one._trainable_variables)
        return {
            (id(owner), rest): slot
            for slot, (owner, rest) in zip(one.variables, owners, strict=True)
        }

    part = type(optimizer).from_config(optimizer.get_config())
    part.build(variables)
    kept = keyed(optimizer)
    for key, variable in keyed(part).items():
        if key in kept:
            variable.assign(kept[key])
    return part


def _keys(optimizer: Any, model: keras.Model) -> list[Any]:
    """What each of the optimizer's variables is for."""
    places = {
        id(variable): (layer.name, i)
        for layer in model.layers
        for i, variable in enumerate(layer.trainable_variables)
    }
    variables = list(model.trainable_variables)
    return [
        slot.name if owner is None else (*places[id(owner)], rest)
        for slot, (owner, rest) in zip(
            optimizer.variables, slots.owners(optimizer, variables), strict=True
        )
    ]
