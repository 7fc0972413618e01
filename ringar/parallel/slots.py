"""Which variables of an optimizer belong to variables of the model that are cut."""

from __future__ import annotations

from typing import Any

from ringar.parallel.lineage import Cut, cut_of


def cuts(optimizer: Any, variables: list[Any]) -> list[Cut | None]:
    """How each of `optimizer.variables` is cut, in their order.

    Momenta, moving averages and accumulated gradients have the shape of the model's variable that
    they belong to, and Keras names them after its path.

    Args:
        optimizer: a built Keras optimizer.
        variables: the model's variables that it was built with.
    """
    names = sorted(
        ((f"{v.path.replace('/', '_')}_", v) for v in variables), key=lambda pair: -len(pair[0])
    )

    def cut(slot: Any) -> Cut | None:
        owner = next(
            (v for name, v in names if slot.name.startswith(name) and slot.shape == v.shape), None
        )
        return None if owner is None else cut_of(owner)

    return [cut(slot) for slot in optimizer.variables]
