"""Conversion of weights and optimizer state between the modules and the plain model.

A layer belongs to one module, and its weights have the same order everywhere. The key of an
optimizer slot is the layer of its variable, the variable's index in the layer, and the name of the
slot. The key of a variable without owner (the step, the learning rate) is a number.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from ringar.collectives import allgather_object
from ringar.collectives.agree import first
from ringar.job.process_sets import ProcessSet
from ringar.keras.optimizer import DistributedOptimizer
from ringar.keras.optimizer_copy import copy_of
from ringar.parallel.pipeline import checks
from ringar.sharding import slots
from ringar.sharding.grid import Grid

State = dict[Any, Any]


class Plain:
    """Rebuild the plain model.

    Args:
        model: the model before it is cut.

    Attributes:
        losses: the losses and metrics with which the pipeline was compiled.
    """

    def __init__(self, model: keras.Model) -> None:
        self._description = json.dumps(keras.saving.serialize_keras_object(model))
        self.losses: Any = None
        self._types = {
            type(layer).__name__: type(layer)
            for layer in model._flatten_layers()
            if not type(layer).__module__.startswith("keras.")
        }

    def make(self) -> keras.Model:
        """Return a new, uncompiled copy of the model, with new weights."""
        description = {**json.loads(self._description), "compile_config": None}
        # safe_mode is not needed: the description comes from this program.
        return keras.saving.deserialize_keras_object(
            description, custom_objects=self._types, safe_mode=False
        )

    def compile(self, model: keras.Model, config: dict[str, Any]) -> None:
        """Compile a copy by the config of a pipeline, with the user's own losses and metrics."""
        types = dict(self._types)
        for loss in keras.tree.flatten(self.losses):
            if loss is not None and not isinstance(loss, str):
                kind = loss if hasattr(loss, "__name__") else type(loss)
                types[kind.__name__] = kind
        with keras.saving.custom_object_scope(types):
            model.compile_from_config(config)

    def with_weights(self, network: keras.Model, ranks: ProcessSet) -> keras.Model:
        """Return a model with the weights of all modules. Collective over the model group.

        Args:
            network: the network of this rank's module.
            ranks: the ranks of the model group.
        """
        model = self.make()
        weights = layer_weights(network.layers)
        for state in allgather_object(weights, name="weights of modules", process_set=ranks):
            set_layer_weights(model, state)
        return model


def write(save: Callable[[], None], method: str, path: Any) -> None:
    """Write a file from rank 0. Collective over all ranks."""
    first(save, caller=f"Pipelined.{method}", deed=f"to write {str(path)!r}")


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
    """Give the plain model's optimizer the state of all modules' optimizers. Collective.

    Args:
        model: the plain model, compiled.
        network: the network of this rank's module.
        optimizer: the optimizer of this rank's module.
        ranks: the ranks of the model group.
    """
    model.optimizer.build(model.trainable_variables)
    state_here = optimizer_state(optimizer, network)
    states = allgather_object(state_here, name="optimizers of modules", process_set=ranks)
    if None in states or optimizer_state(model.optimizer, model) is None:
        _warn(optimizer)
        return
    for state in filter(None, states):
        set_optimizer_state(model.optimizer, model, state)


def layer_weights(layers: Iterable[Any]) -> State:
    """Return the weights of layers, by the layers' names."""
    return {layer.name: layer.get_weights() for layer in layers if layer.weights}


def set_layer_weights(model: keras.Model, state: State) -> None:
    """Set the weights of a model's layers to the result of `layer_weights`."""
    for layer in model.layers:
        if layer.name in state:
            layer.set_weights(state[layer.name])


def optimizer_state(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> State | None:
    """Return the state of an optimizer that was built with the trainable variables of `model`.

    Returns:
        The values by key; None if the owner of a slot is unknown.
    """
    return _state(optimizer, _places(model))


def set_optimizer_state(
    optimizer: keras.optimizers.Optimizer, model: keras.Model, state: State
) -> None:
    """Set the state of an optimizer to one from `optimizer_state`, for the variables of `model`.

    The step count is the maximum over the modules: a module without weights counts no steps.
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
    """Return a copy of an optimizer for some of its variables, with their state."""
    part = copy_of(optimizer)
    part.build(variables)
    places = {id(variable): (id(variable),) for variable in optimizer._trainable_variables}
    state = _state(optimizer, places)
    if state is None:
        _warn(optimizer)
        return part
    for key, variable in zip(_keys(part, places), part.variables, strict=True):
        variable.assign(state[key])
    return part


def module_optimizer(
    optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable], grid: Grid
) -> keras.optimizers.Optimizer:
    """Return the optimizer of this rank's module, with its part of the state."""
    checks.check_optimizer(optimizer, grid.model)
    if optimizer.built and grid.model > 1:
        optimizer = part_of_optimizer(optimizer, variables)
    if grid.data == 1:
        return optimizer
    return DistributedOptimizer(optimizer, process_set=grid.data_set)


def _places(model: keras.Model) -> dict[int, tuple[Any, ...]]:
    """Return the layer and the index in it of each weight of a model, by the weight's id."""
    return {
        id(variable): (layer.name, i)
        for layer in model.layers
        for i, variable in enumerate(layer.weights)
    }


def _keys(optimizer: keras.optimizers.Optimizer, places: dict[int, tuple[Any, ...]]) -> list[Any]:
    """Return the key of each of the optimizer's variables."""
    numbers = itertools.count()
    return [
        (next(numbers),) if owner is None else (*places[id(owner)], rest)
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
