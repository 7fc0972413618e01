"""Staleness-aware learning rates, with 30 simulated workers on images of digits."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from ringar.asynchronous.log import staleness_histogram
from ringar.asynchronous.model_gradients import gradients_of
from ringar.asynchronous.replay import simulate
from ringar.asynchronous.shard import Shard
from ringar.asynchronous.staleness import Asynchronous, HardSync, StalenessControl
from tests.asynchronous.problems import TRAINED, loss, problem

pytestmark = [pytest.mark.ranks(1), pytest.mark.slow, pytest.mark.deadline(600)]

WORKERS, BATCH = 30, 16
#: The rates alpha0 / tau are slower in the first steps, and need as many to catch up.
STEPS = 500
RATES = {"dense": 0.15, "sparse": 0.1}


def train(kind: str, control: StalenessControl, seed: int, steps: int) -> tuple[float, list[int]]:
    """The accuracy on images that were not trained on, and the histogram of staleness."""
    task = problem(kind)
    x, y, model = task.x, task.y, task.model(seed)
    model.compile("sgd", loss(), metrics=["accuracy"])

    def batch_of(worker: int, step: int) -> tuple[Any, Any]:
        rows = np.random.default_rng([seed, worker, step]).integers(0, TRAINED, BATCH)
        return x[rows], y[rows]

    values = [np.array(variable) for variable in model.trainable_variables]
    shard = Shard(0, values, keras.optimizers.SGD(RATES[kind]), control, WORKERS)
    durations = [float(d) for d in np.random.default_rng(seed).uniform(0.8, 1.2, WORKERS)]
    log = simulate(
        [shard],
        gradients_of(model, batch_of),
        WORKERS,
        lambda generator, worker: durations[worker] * generator.uniform(0.8, 1.2),
        seed,
        steps,
    )
    for variable, value in zip(model.trainable_variables, shard.values(), strict=True):
        variable.assign(value)
    accuracy = model.evaluate(x[TRAINED:], y[TRAINED:], verbose=0)[1]
    return float(accuracy), staleness_histogram(log).tolist()


@pytest.mark.parametrize("kind", RATES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rates_by_staleness_reach_synchronous_accuracy(seed: int, kind: str) -> None:
    fixed, _ = train(kind, Asynchronous(), seed, steps=50)  # it has diverged by then
    aware, counts = train(kind, Asynchronous("staleness"), seed, STEPS)
    hard, of_hard = train(kind, HardSync(), seed, STEPS)
    print(f"fixed {fixed:.3f}, alpha0 / tau {aware:.3f}, hardsync {hard:.3f}")
    # It is 29 until the first workers have ended.
    assert 25 < np.average(np.arange(len(counts)), weights=counts) <= 29
    assert len(of_hard) == 1
    assert fixed < 0.2
    assert hard > 0.95
    assert aware > hard - 0.02
