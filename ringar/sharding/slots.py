"""Which variables of an optimizer belong to which variables of the model."""

from __future__ import annotations

from typing import Any

from ringar.sharding.cut import Cut, cut_of


def owners(optimizer: Any, variables: list[Any]) -> list[tuple[Any | None, str]]:
    """For each of `optimizer.variables` the model's variable that it belongs to, if any.

    Momenta, moving averages and accumulated gradients have the shape of the model's variable that
    they belong to, and Keras names them after its path.

    Args:
        optimizer: a built Keras optimizer.
        variables: the model's variables that it was built with.

    Returns:
        Pairs of a variable of `variables`, or None, and the rest of the name.
    """
    names = sorted(
        ((f"{v.path.replace('/', '_')}_", v) for v in variables), key=lambda pair: -len(pair[0])
    )

    def owner(slot: Any) -> tuple[Any | None, str]:
        for name, variable in names:
            if slot.name.startswith(name) and slot.shape == variable.shape:
                return variable, slot.name.removeprefix(name)
        return None, slot.name

    return [owner(slot) for slot in optimizer.variables]


def cuts(optimizer: Any, variables: list[Any]) -> list[Cut | None]:
    """How each of `optimizer.variables` is cut, in their order, like its owner.

    Args:
        optimizer: a built Keras optimizer.
        variables: the model's variables that it was built with.
    """
    return [None if owner is None else cut_of(owner) for owner, _ in owners(optimizer, variables)]
