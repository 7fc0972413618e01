"""ringar.sharding.slots: an optimizer's variables and whose they are, by identity."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from ringar.sharding import slots
from ringar.sharding.cut import Cut, mark

pytestmark = pytest.mark.ranks(1)

OPTIMIZERS: dict[str, Any] = {
    "SGD": {},
    "Adam": {"amsgrad": True, "use_ema": True, "gradient_accumulation_steps": 2},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adafactor": {},
    "Nadam": {},
    "Ftrl": {},
    "Adadelta": {},
}


def model() -> keras.Model:
    # Names of which one begins with the other: they must not matter.
    layers = [keras.layers.Dense(3, name="a"), keras.layers.Dense(2, name="a_kernel")]
    return keras.Sequential([keras.Input((4,)), *layers])


def built(name: str) -> tuple[Any, list[Any]]:
    optimizer = getattr(keras.optimizers, name)(**OPTIMIZERS[name])
    variables = model().trainable_variables
    optimizer.build(variables)
    return optimizer, variables


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_but_scalars_belong_to_the_variable_in_whose_place_they_are(name: str) -> None:
    optimizer, variables = built(name)
    kinds: dict[str, list[int]] = {}
    for slot, (owner, kind) in zip(optimizer.variables, slots.owners(optimizer), strict=True):
        if owner is None:
            assert slot.shape == (), f"{kind} belongs to a variable"
        else:
            assert slot is getattr(optimizer, kind)[optimizer._get_variable_index(owner)]
            kinds.setdefault(kind, []).append(id(owner))
    assert all(owners == [id(v) for v in variables] for owners in kinds.values())
    assert bool(kinds) == (name != "SGD")


def test_slots_of_an_optimizer_in_another() -> None:
    inner, variables = built("Adam")
    optimizer = keras.optimizers.LossScaleOptimizer(type(inner)(**OPTIMIZERS["Adam"]))
    optimizer.build(variables)
    owned = [owner for owner, _ in slots.owners(optimizer) if owner is not None]
    assert len(owned) == 5 * len(variables)
    assert slots.inner_optimizer(optimizer) is optimizer.inner_optimizer
    assert slots.inner_optimizer(inner) is inner


class ByPath(keras.optimizers.SGD):
    """Keeps slots in a dictionary, and something that is nobody's."""

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.slow = {v.path: self.add_variable_from_reference(v, name="slow") for v in variables}
        self.history = self.add_variable((3,), name="history")


def test_slots_in_a_dictionary_and_variables_of_nobody() -> None:
    variables = model().trainable_variables
    optimizer = ByPath(0.1)
    optimizer.build(variables)
    pairs = slots.owners(optimizer)
    assert [id(owner) for owner, kind in pairs if kind == "slow"] == [id(v) for v in variables]
    assert pairs[-1] == (None, "history")


def test_slots_of_a_shape_of_their_own_are_not_cut() -> None:
    class Grid:
        model = 2

    grid: Any = Grid()
    optimizer, variables = built("Adafactor")
    mark(variables[0], Cut(1, grid))
    cut = [
        slot.shape
        for slot, cut in zip(optimizer.variables, slots.cuts(optimizer), strict=True)
        if cut is not None
    ]
    assert cut == [variables[0].shape]
