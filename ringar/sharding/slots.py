"""Which variables of an optimizer belong to which variables of the model.

An optimizer of Keras keeps its slots (momenta, moving averages, accumulated gradients) in lists in
the order of the variables that it was built with, and finds them by that place. The slots are found
here in the same way: by identity, whatever their names and shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from ringar.sharding.cut import Cut, cut_of


def inner_optimizer(optimizer: Any) -> Any:
    """Return the optimizer in a `LossScaleOptimizer`, and any other one itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def owners(optimizer: Any) -> list[tuple[Any | None, str]]:
    """Return for each of `optimizer.variables` the variable of the model that it belongs to.

    Args:
        optimizer: a built Keras optimizer.

    Returns:
        Pairs of a variable that the optimizer was built with and the name of the slot. Counters,
        learning rates, and slots that the optimizer keeps in a way of its own belong to None.
    """
    found: dict[int, tuple[Any, str]] = {}
    for one in _with_nested(optimizer):
        for name, slots in vars(one).items():
            if name != "_variables":  # all of them, in the order of their making
                for slot, variable in _pairs(slots, one._trainable_variables):
                    found[id(slot)] = variable, name
    return [found.get(id(slot), (None, slot.name)) for slot in optimizer.variables]


def cuts(optimizer: Any) -> list[Cut | None]:
    """Return how each of `optimizer.variables` is cut: as the variable is whose shape it has.

    Args:
        optimizer: a built Keras optimizer.
    """
    return [
        cut_of(owner) if owner is not None and owner.shape == slot.shape else None
        for slot, (owner, _) in zip(optimizer.variables, owners(optimizer), strict=True)
    ]


def _with_nested(optimizer: Any) -> Iterator[Any]:
    """Yield `optimizer` and those that it hands variables to, as those that scale losses do."""
    yield optimizer
    for value in vars(optimizer).values():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(one, keras.optimizers.Optimizer):
                yield from _with_nested(one)


def _pairs(slots: Any, variables: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Return the members of an attribute and their variables, if it has one for each variable."""
    if isinstance(slots, dict):
        keys = {key: v for i, v in enumerate(variables) for key in (i, id(v), v.path)}
        yield from ((slot, keys[key]) for key, slot in slots.items() if key in keys)
    elif isinstance(slots, (list, tuple)) and len(slots) == len(variables):
        yield from zip(slots, variables, strict=True)
