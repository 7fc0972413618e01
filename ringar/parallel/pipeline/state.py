"""From the weights and optimizer states of the modules to those of the plain model, and back.

A layer belongs to one module, and its weights have the same places in it everywhere. What an
optimizer keeps for a variable is found by the variable's layer, its place there, and the rest of
the name that Keras gives it; what it keeps for none (its step, its learning rate) by its order.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np

from ringar.collectives import allgather_object, broadcast_object
from ringar.job import place
from ringar.job.process_sets import ProcessSet
from ringar.sharding import slots

State = dict[Any, Any]


class Plain:
    """Make the plain model again.

    Args:
        model: which is to be cut.
    """

    def __init__(self, model: keras.Model) -> None:
        self._description = json.dumps(keras.saving.serialize_keras_object(model))
        self._types = {
            type(layer).__name__: type(layer)
            for layer in model._flatten_layers()
            if not type(layer).__module__.startswith("keras.")
        }

    def make(self) -> keras.Model:
        """Return a model like it, not compiled, with fresh weights."""
        description = {**json.loads(self._description), "compile_config": None}
        # It describes a model of this very program.
        return keras.saving.deserialize_keras_object(
            description, custom_objects=self._types, safe_mode=False
        )

    def names(self, used: Any) -> AbstractContextManager[Any]:
        """Return a context that finds the user's own losses and metrics by name."""
        types = dict(self._types)
        for one in keras.tree.flatten(used):
            if one is not None and not isinstance(one, str):
                kind = one if hasattr(one, "__name__") else type(one)
                types[kind.__name__] = kind
        return keras.saving.custom_object_scope(types)

    def with_weights(self, network: keras.Model, ranks: ProcessSet) -> keras.Model:
        """Return a model with the weights of all modules. Collective over the model group.

        Args:
            network: of this rank's module.
            ranks: of the model group.
        """
        model = self.make()
        own = layer_weights(network.layers)
        for state in allgather_object(own, name="weights of modules", process_set=ranks):
            set_layer_weights(model, state)
        return model


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Return the arguments with which `model` was compiled, its optimizer itself among them."""
    arguments = keras.saving.deserialize_keras_object(model.get_compile_config())
    for name in ("run_eagerly", "steps_per_execution"):
        arguments.pop(name, None)
    return {**arguments, "optimizer": model.optimizer}


def gather_optimizer(
    model: keras.Model,
    network: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    ranks: ProcessSet,
) -> None:
    """Give the plain model's optimizer the state of all modules'. Collective.

    Args:
        model: the plain model, compiled.
        network: of this rank's module.
        optimizer: of this rank's module.
        ranks: of the model group.
    """
    model.optimizer.build(model.trainable_variables)
    own = optimizer_state(optimizer, network)
    states = allgather_object(own, name="optimizers of modules", process_set=ranks)
    if None in states or optimizer_state(model.optimizer, model) is None:
        _warn(optimizer)
        return
    for state in states:
        set_optimizer_state(model.optimizer, model, state)


def on_rank_0(write: Callable[[], object]) -> None:
    """Let rank 0 write a file. Collective over all ranks.

    Raises:
        Exception: on rank 0, what `write` raises, and then an OSError on all others.
    """
    trouble = None
    if place.rank() == 0:
        try:
            write()
        except Exception as error:  # the other ranks wait to hear of it
            trouble = error
    said = broadcast_object(trouble and str(trouble), name="save")
    if trouble is not None:
        raise trouble
    if said:
        raise OSError(f"rank {place.rank()} | save: rank 0 could not write: {said}")


def layer_weights(layers: Iterable[Any]) -> State:
    """Return the weights of layers, by the layers' names."""
    return {layer.name: layer.get_weights() for layer in layers if layer.weights}


def set_layer_weights(model: keras.Model, state: State) -> None:
    """Give layers of a model the weights that `layer_weights` has returned."""
    for layer in model.layers:
        if layer.name in state:
            layer.set_weights(state[layer.name])


def optimizer_state(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> State | None:
    """Return the variables of an optimizer that was built with the trainable variables of `model`.

    None if it is not clear to which weights they belong.
    """
    return _state(optimizer, _places(model))


def set_optimizer_state(
    optimizer: keras.optimizers.Optimizer, model: keras.Model, state: State
) -> None:
    """Give an optimizer what `optimizer_state` has returned, for the variables of this model.

    Of the steps that modules have counted it takes the most: one without weights counts none.
    """
    keys = _keys(optimizer, _places(model))
    for key, variable in zip(keys, optimizer.variables, strict=True):
        if key not in state:
            continue
        now = np.asarray(keras.ops.convert_to_numpy(variable))
        is_count = variable is optimizer.iterations
        variable.assign(np.maximum(now, state[key]) if is_count else state[key])


def part_of_optimizer(
    optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]
) -> keras.optimizers.Optimizer:
    """Return a new optimizer like this one for some of its variables, with their state."""
    part = type(optimizer).from_config(optimizer.get_config())
    part.build(variables)
    places = {id(variable): (id(variable),) for variable in optimizer._trainable_variables}
    state = _state(optimizer, places)
    if state is None:
        _warn(optimizer)
        return part
    for key, variable in zip(_keys(part, places), part.variables, strict=True):
        variable.assign(state[key])
    return part


def _places(model: keras.Model) -> dict[int, tuple[Any, ...]]:
    """Return layer and place of a model's weights, by their ids."""
    return {
        id(variable): (layer.name, i)
        for layer in model.layers
        for i, variable in enumerate(layer.weights)
    }


def _keys(optimizer: keras.optimizers.Optimizer, places: dict[int, tuple[Any, ...]]) -> list[Any]:
    """Return the weight that each of the optimizer's variables is for, or a number for none."""
    alone = itertools.count()
    return [
        (next(alone),) if owner is None else (*places[id(owner)], rest)
        for owner, rest in slots.owners(optimizer)
    ]


def _state(
    optimizer: keras.optimizers.Optimizer, places: dict[int, tuple[Any, ...]]
) -> State | None:
    keys = _keys(optimizer, places)
    values = [np.asarray(keras.ops.convert_to_numpy(v)) for v in optimizer.variables]
    of_none = [value for key, value in zip(keys, values, strict=True) if len(key) == 1]
    if len(set(keys)) < len(keys) or any(value.ndim > 0 for value in of_none):
        return None
    return dict(zip(keys, values, strict=True))


def _warn(optimizer: keras.optimizers.Optimizer) -> None:
    warnings.warn(
        f"The state of {type(optimizer).__name__} is not kept: ringar cannot tell which of its "
        "variables belong to which weights.",
        stacklevel=3,
    )
