"""Autotune in a loop of one's own: the same bits as without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

import ringar
from ringar.errors import MismatchError
from ringar.keras import tuned
from ringar.keras.tuned import DEFAULTS, Settings
from ringar.keras.tuning import clock
from tests.keras import common
from tests.keras.tuning.short import LENGTHS, data, layers
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

Step = Callable[[Any, Any], tf.Tensor]


class Loop:
    """Train by a tape; note the settings of each step that is traced, or runs eagerly."""

    def __init__(self, graph: bool) -> None:
        self.model, self.sgd = layers(), keras.optimizers.SGD(0.01, momentum=0.9)
        self.sgd.build(self.model.trainable_variables)
        self.graph, self.settings = graph, list[Settings]()

    def make(self) -> Step:
        def train(x: Any, y: Any) -> tf.Tensor:
            self.settings.append(tuned.current())
            with ringar.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_mean(tf.square(self.model(x, training=True) - y))
            variables = self.model.trainable_variables
            self.sgd.apply(tape.gradient(loss, variables), variables)
            return loss

        step: Step = tf.function(train) if self.graph else train
        return step

    def run(self, steps: int = 70) -> list[Any]:
        step = ringar.autotune(self.make, self.model.trainable_variables)
        x, y = data(steps)
        for row in range(0, 2 * (steps - 1), 2):
            step(x[row : row + 2], y[row : row + 2])
        if ringar.rank() == 0:  # behind the search, ranks may have different numbers of steps
            step(x[-2:], y[-2:])
        ringar.join(self.sgd)
        return common.values(self.model) + [v.numpy() for v in self.sgd.variables]


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("graph", [True, fast_if(False, False)])
def test_weights_have_the_same_bits(graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Loop(graph)
    expected = plain.run()
    now = 0.0

    def scripted() -> float:
        """The defaults take 2 s, others 1 s."""
        nonlocal now
        now += 1.0 + (loop.settings[-1:] in ([], [DEFAULTS]))
        return now

    for name, value in LENGTHS.items():
        monkeypatch.setenv(f"RINGAR_AUTOTUNE_{name}", value)
    monkeypatch.setenv("RINGAR_AUTOTUNE", "1")
    monkeypatch.setattr(clock, "now", scripted)
    loop = Loop(graph)
    weights = loop.run()
    assert all((a == b).all() for a, b in zip(weights, expected, strict=True))
    assert set(plain.settings) == {DEFAULTS}
    assert len(set(loop.settings)) == 3
    assert loop.settings[-1] != DEFAULTS


@pytest.mark.ranks(2, 3)
def test_ranks_of_which_only_some_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    if ringar.rank() == 1:
        monkeypatch.setenv("RINGAR_AUTOTUNE", "1")
    ranks = "rank 0" if ringar.size() == 2 else "ranks 0, 2"
    message = rf"none \({ranks}\), RINGAR_AUTOTUNE=1 \(rank 1\)"
    with pytest.raises(MismatchError, match=message):
        ringar.autotune(lambda: print, [])


def test_without_the_variable_the_step_is_what_was_made() -> None:
    assert ringar.autotune(lambda: print, []) is print
