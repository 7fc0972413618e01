"""The whole value of a variable that is cut, or of a slot in slices, from all ranks' parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from ringar.collectives.allgather import allgather
from ringar.sharding import slots
from ringar.sharding.cut import Cut, cut_of
from ringar.sharding.variable_slice import VariableSlice


def whole_of(part: Any, cut: Cut | None, name: str | None = None) -> np.ndarray:
    """Return the whole value, on every rank. Collective over the model group.

    Args:
        part: this rank's part: a variable or an array.
        cut: how it is cut; None if every rank has the whole.
        name: the messages' name; by default that of the variable.
    """
    value = np.asarray(keras.ops.convert_to_numpy(part))
    if cut is None or cut.grid.model == 1:
        return value
    ranks, name = cut.grid.model_set, f"whole/{name or part.name}"
    shapes = allgather(np.array([value.shape], np.int64), name=name, process_set=ranks)
    numbers = allgather(value.ravel(), name=name, process_set=ranks)
    ends = np.cumsum(np.prod(shapes, axis=1))[:-1]
    parts = zip(np.split(numbers, ends), shapes, strict=True)
    return cut.join([part.reshape(shape) for part, shape in parts])


def joined(slot: Any, owner: VariableSlice, name: str) -> np.ndarray:
    """Return the slot of a variable, on every rank. Collective over the ranks that have slices.

    Args:
        slot: this rank's slice of the slot.
        owner: the slice of the variable that the slot belongs to.
        name: the message's. The slot's does not do: Keras numbers names by what a rank has made
            before.
    """
    values = np.asarray(slot.numpy())[: owner.count]
    gathered = allgather(values, name=name, process_set=owner.ranks.among)
    return np.asarray(gathered).reshape([int(d) for d in owner.variable.shape])


def whole_variables(optimizer: keras.optimizers.Optimizer) -> Iterator[np.ndarray]:
    """Yield the whole value of each of `optimizer.variables`. Collective over the ranks of a grid.

    Args:
        optimizer: a built Keras optimizer.
    """
    cuts, slices = slots.cuts(optimizer), slots.slices(optimizer)
    for slot, cut, owner in zip(optimizer.variables, cuts, slices, strict=True):
        if owner is None:
            yield whole_of(slot, cut)
        else:
            name = f"whole/{owner.name}"
            yield whole_of(joined(slot, owner, name), cut_of(owner.variable), name)
