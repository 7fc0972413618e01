"""The slots of an optimizer, and the model's variable that each of them belongs to.

Keras' optimizers keep their slots (momenta, moving averages, accumulated gradients) in lists, in
the order of the variables that they were built with. The owner of a slot is therefore found by its
index, whatever its name and shape.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import keras
import numpy as np

from ringar.sharding.cut import Cut, cut_of
from ringar.sharding.variable_slice import VariableSlice

MakeSlot = Callable[[Any, str, Any], Any]
"""A function that makes a slot from the part that owns it, a name and an initializer."""

_CONTAINERS = (list, tuple, Mapping, Set, deque)
_LEAVES = frozenset({bool, bytes, complex, float, int, np.ndarray, str, type(None)})

NOT_ELEMENTWISE = ("Adafactor", "Lamb", "Muon")
"""Optimizers that scale updates by norms of whole variables, or factor them."""


AVERAGES = "_model_variables_moving_average"
"""The attribute of Keras' optimizers with the averages of `use_ema`."""


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer in a `LossScaleOptimizer`, or `optimizer` itself if it is another."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def owners(optimizer: keras.optimizers.Optimizer) -> list[tuple[Any | None, str]]:
    """Return for each of `optimizer.variables` the variable of the model that it belongs to.

    Args:
        optimizer: a built Keras optimizer.

    Returns:
        Pairs of a variable that the optimizer was built with and the name of the slot. The variable
        is None for counters, learning rates and slots in other containers than lists and dicts.
    """
    pairs: dict[int, tuple[Any, str]] = {}
    for nested in with_nested(optimizer):
        for name, slots in vars(nested).items():
            if name != "_variables":  # which has all variables, in the order of creation
                for slot, variable in _pairs(slots, nested._trainable_variables):
                    pairs[id(slot)] = variable, name
    return [pairs.get(id(slot), (None, slot.name)) for slot in optimizer.variables]


def cuts(optimizer: keras.optimizers.Optimizer) -> list[Cut | None]:
    """Return how each of `optimizer.variables` is cut: like its owner, if they have one shape.

    Args:
        optimizer: a built Keras optimizer.
    """
    return [
        cut_of(owner) if owner is not None and owner.shape == slot.shape else None
        for slot, (owner, _) in zip(optimizer.variables, owners(optimizer), strict=True)
    ]


def slices(optimizer: keras.optimizers.Optimizer) -> list[VariableSlice | None]:
    """Return for each of `optimizer.variables` the slice that it belongs to, or None.

    Other ranks have the rest of such a slot.

    Args:
        optimizer: a built Keras optimizer.
    """
    return [
        owner if isinstance(owner, VariableSlice) and owner.shape == slot.shape else None
        for slot, (owner, _) in zip(optimizer.variables, owners(optimizer), strict=True)
    ]


def common(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """Return those of `optimizer.variables` that are equal on all ranks: no slots of slices.

    Args:
        optimizer: an optimizer as far as it is built.
    """
    pairs = zip(optimizer.variables, slices(optimizer), strict=True)
    return [variable for variable, variable_slice in pairs if variable_slice is None]


def replace(
    optimizer: keras.optimizers.Optimizer, parts: Sequence[Any], make: MakeSlot | None = None
) -> None:
    """Cut the slots of a built optimizer as its variables are, one after the other.

    Args:
        optimizer: a built Keras optimizer that trains whole variables.
        parts: what it trains in their place: slices of these variables, or a variable itself.
        make: makes the slots; None: as variables of Keras.
    """
    for name, values in list(vars(optimizer).items()):
        is_other = name in ("_variables", "_trainable_variables")
        if is_other or not isinstance(values, (list, tuple)) or len(values) != len(parts):
            continue
        cut = list(values)
        for place, (slot, part) in enumerate(zip(values, parts, strict=True)):
            variable = part.variable if isinstance(part, VariableSlice) else part
            changes = variable is not part or make is not None
            if slot is not None and changes and tuple(slot.shape) == tuple(variable.shape):
                cut[place] = _cut(optimizer, slot, part, make or _variable)
        object.__setattr__(optimizer, name, cut)  # unseen by Keras' tracking
    object.__setattr__(optimizer, "_trainable_variables", list(parts))


def _cut(optimizer: Any, slot: Any, part: Any, make: MakeSlot) -> Any:
    """Put this rank's part of `slot` in its place among the optimizer's variables."""
    value = np.asarray(keras.ops.convert_to_numpy(slot))
    values = part.of_array(value) if isinstance(part, VariableSlice) else value
    with keras.name_scope(optimizer.name):
        replacement = make(part, slot.name, lambda shape, dtype=None: values)
    number = next(i for i, variable in enumerate(optimizer._variables) if variable is slot)
    optimizer._variables[number] = replacement
    return replacement


def _variable(part: Any, name: str, initializer: Any) -> keras.Variable:
    return keras.Variable(
        initializer, shape=part.shape, dtype=part.dtype, trainable=False, name=name
    )


def with_nested(optimizer: keras.optimizers.Optimizer) -> Iterator[Any]:
    """Yield `optimizer` and the optimizers in its attributes.

    A `MultiOptimizer` that chooses its optimizers by a function has them once it is built.
    """
    yield optimizer
    for nested in optimizers_within(list(vars(optimizer).values())):
        yield from with_nested(nested)


def optimizers_within(value: Any, ids: set[int] | None = None) -> Iterator[Any]:
    """Yield the optimizers in containers of any kind and depth, in an order that ranks share.

    Args:
        value: an optimizer, a container or anything else.
        ids: the ids of the objects that were visited before.
    """
    ids = set() if ids is None else ids
    is_optimizer = isinstance(value, keras.optimizers.Optimizer)
    if not (is_optimizer or isinstance(value, _CONTAINERS)) or id(value) in ids:
        return
    ids.add(id(value))
    if is_optimizer:
        yield value
        return
    parts = value.values() if isinstance(value, Mapping) else value
    if _LEAVES.issuperset(map(type, parts)):
        return  # such as a vocabulary, which may be long
    if isinstance(value, Set):
        parts = sorted(value, key=lambda part: str(getattr(part, "name", "")))
    for part in list(parts):
        yield from optimizers_within(part, ids)


def _pairs(slots: Any, variables: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the slots in an attribute with their owners, if it has one slot per variable."""
    if isinstance(slots, dict):
        keys = {key: v for i, v in enumerate(variables) for key in (i, id(v), v.path)}
        yield from ((slot, keys[key]) for key, slot in slots.items() if key in keys)
    elif isinstance(slots, (list, tuple)) and len(slots) == len(variables):
        yield from zip(slots, variables, strict=True)
