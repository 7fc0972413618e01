"""The state of a training run that no Keras file has, and the group of an HDF5 file that holds it.

A file of weights has the layers' weights and the optimizer's variables. A run that is to go on bit
for bit needs more: the states of the seed generators and of the metrics, the counters of the
callbacks, and every variable in which a rank differs from the rank that writes. `capture` gathers
that, `write` adds it to the file of weights, so that one file has all of it and is renamed once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import h5py
import keras
import numpy as np
from keras.src.backend.common import global_state  # the generator of random functions without one

from ringar.collectives import allgather_object, broadcast_object
from ringar.collectives.digest import digest
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import callback_traits, share
from ringar.keras.zero.weight_slice import is_sharded
from ringar.sharding import slots
from ringar.sharding.cut import cut_of
from ringar.sharding.variable_slice import VariableSlice
from ringar.sharding.whole import joined

_GROUP = "ringar"
#: The kinds of variables that a file of weights lacks.
_LACKING = ("seed", "global seed", "metric", "exchange")


def capture(model: keras.Model, metrics: bool, process_set: ProcessSet | None = None) -> list[Any]:
    """Return each rank's values of the variables that a file of weights lacks. Collective.

    Args:
        model: a built model with a built optimizer.
        metrics: whether the state of metrics counts; between epochs Keras resets it.
        process_set: the ranks that train together; the first of them writes the file.

    Returns:
        A list per rank, of pairs: the key of a variable in `variables_of`, and its value. The first
        list has the variables that the file lacks; the others have those that differ from the first
        rank's.
    """
    ranks = or_all(process_set)
    variables = variables_of(model, metrics)
    arrays = {key: keras.ops.convert_to_numpy(v) for key, v in variables.items()}
    digests = {key: digest([array]) for key, array in arrays.items()}
    where: dict[str, Any] = {"name": "backup", "process_set": process_set}
    of_part = dict(_slots_of_part(model))
    if ranks.rank() == 0:
        pairs = [(key, array) for key, array in arrays.items() if key.startswith(_LACKING)]
    if ranks.size() == 1:
        return [pairs]
    first = broadcast_object(digests, ranks.ranks[0], **where)
    if ranks.rank() != 0:
        pairs = [(key, array) for key, array in arrays.items() if digests[key] != first.get(key)]
        pairs += of_part.items()
    return allgather_object(pairs, **where)


def restore(
    model: keras.Model, captured: Sequence[Any], process_set: ProcessSet | None = None
) -> None:
    """Assign this rank's values of `captured` to the variables of `model`.

    Variables that the first step makes, such as those of metrics, are left out before it. A rank
    that the captured job did not have keeps its own seeds.

    Args:
        model: the model, with the weights and the optimizer state of the first rank.
        captured: the result of `capture`.
        process_set: the ranks that train together.
    """
    rank = or_all(process_set).rank()
    for key, slot, variable_slice in _slices_of_part(model):
        value = dict(captured[cut_of(variable_slice.variable).grid.part]).get(key)  # type: ignore[union-attr]
        if value is not None:
            _check_shape(rank, key, value, variable_slice.variable)
            slot.assign(variable_slice.of_array(value))
    if rank >= len(captured):
        return
    variables = variables_of(model)
    # A part of a cut variable may have another shape here than on the first rank.
    arrays = dict(captured[0]) | (dict(captured[rank]) if rank else {})
    for key, value in arrays.items():
        variable = variables.get(key)
        if variable is not None:
            _check_shape(rank, key, value, variable)
            variable.assign(value)


def _check_shape(rank: int, key: str, value: np.ndarray, variable: Any) -> None:
    if tuple(variable.shape) != value.shape:
        raise ValueError(
            f"rank {rank} | backup: expected the model that was backed up, with a {key} of "
            f"shape {list(value.shape)}, received shape {list(variable.shape)}; build the same "
            "model, or remove the backup"
        )


def _slots_of_part(model: keras.Model) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the sliced slots of this rank's part of cut variables, if this rank reports them.

    The file has the slots of the first part. A rank of the first model group reports each other.
    """
    for key, slot, variable_slice in _slices_of_part(model):
        whole_slot = joined(slot, variable_slice, "backup")
        if cut_of(variable_slice.variable).grid.group == 0:  # type: ignore[union-attr]
            yield key, whole_slot


def _slices_of_part(model: keras.Model) -> Iterator[tuple[str, Any, VariableSlice]]:
    """Yield the slots of cut variables that are slices, on a rank without the first part."""
    for number, optimizer in enumerate(share.optimizers_of(model)):
        pairs = zip(optimizer.variables, slots.slices(optimizer), strict=True)
        for index, (slot, variable_slice) in enumerate(pairs):
            cut = None if variable_slice is None else cut_of(variable_slice.variable)
            if variable_slice is not None and cut is not None and cut.grid.part > 0:
                yield f"slice {number} {index}", slot, variable_slice


def variables_of(model: keras.Model, metrics: bool = True) -> dict[str, Any]:
    """Return all variables of `model`, each under a kind and a number.

    Args:
        model: a built model with a built optimizer.
        metrics: whether those of metrics are among them.
    """
    groups = {f"slot {i}": slots.common(o) for i, o in enumerate(share.optimizers_of(model))}
    groups |= {f"exchange {i}": [*e.period.state] for i, e in enumerate(share.exchanges_of(model))}
    groups |= {"weight": model.weights, "seed": model.variables}
    groups["metric"] = model.metrics_variables if metrics else []
    generator = global_state.get_global_attribute("global_seed_generator")
    groups["global seed"] = [generator.state] if generator is not None else []
    weights = {id(weight) for weight in model.weights}
    return {
        f"{kind} {number}": variable
        for kind, group in groups.items()
        for number, variable in enumerate(group)
        if kind != "seed" or id(variable) not in weights  # the rest of `variables` are seeds
        if not is_sharded(variable)  # in the file of the model
    }


def counters(callbacks: Iterable[keras.callbacks.Callback]) -> list[Any]:
    """Return the state of callbacks: pairs of the name of a class and its attributes."""
    states = ((callback_traits.kind(c), callback_traits.state(c)) for c in callbacks)
    return [(kind, values) for kind, values in states if values]


def set_counters(callbacks: Iterable[keras.callbacks.Callback], state: Sequence[Any]) -> None:
    """Give `callbacks` the state that `counters` has returned: the n-th of a kind to the n-th."""
    values = list(state)
    for callback in callbacks:
        kind = callback_traits.kind(callback)
        index = next((i for i, (of, _) in enumerate(values) if of == kind), None)
        if index is not None:
            vars(callback).update(values.pop(index)[1])


def share_writers(
    callbacks: Iterable[keras.callbacks.Callback], process_set: ProcessSet | None, name: str
) -> None:
    """Give all ranks the state of the callbacks that the first rank alone calls. Collective."""
    ranks = or_all(process_set)
    writers = [callback for callback in callbacks if callback_traits.writes(callback)]
    if ranks.size() > 1:
        state = broadcast_object(
            counters(writers), ranks.ranks[0], name=name, process_set=process_set
        )
        set_counters(writers, state)


def write(path: str, state: dict[str, Any]) -> None:
    """Add `state` to the HDF5 file at `path`: numbers, strings, lists, dicts and arrays."""
    with h5py.File(path, "a") as file:
        group = file.create_group(_GROUP)

        def store(value: Any) -> dict[str, Any]:
            array = np.asarray(value)
            name = str(len(group))
            group[name] = np.frombuffer(array.tobytes(), np.uint8)
            return {"array": name, "dtype": array.dtype.name, "shape": array.shape}

        text = json.dumps(state, default=store)
        group["json"] = np.frombuffer(text.encode(), np.uint8)


def read(path: str) -> dict[str, Any] | None:
    """Return the state in the HDF5 file at `path`; None if `write` has not added one."""
    with h5py.File(path, "r") as file:
        if _GROUP not in file:
            return None
        group = file[_GROUP]

        def load(value: dict[str, Any]) -> Any:
            if "array" not in value:
                return value
            data = group[value["array"]][()].tobytes()
            # [()] makes a number of an array without axes.
            return np.frombuffer(data, np.dtype(value["dtype"])).reshape(value["shape"])[()]

        state: dict[str, Any] = json.loads(group["json"][()].tobytes(), object_hook=load)
        return state
