"""The claim of staleness-aware rates, with 30 simulated workers on images of digits."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

from ringar.asynchronous.log import staleness_histogram
from ringar.asynchronous.model_gradients import gradients_of
from ringar.asynchronous.replay import simulate
from ringar.asynchronous.shard import Shard
from ringar.asynchronous.staleness import Asynchronous, HardSync, StalenessControl

pytestmark = [pytest.mark.ranks(1), pytest.mark.slow, pytest.mark.deadline(600)]

WORKERS, BATCH = 30, 16
#: The rates alpha0 / tau are slower in the first steps, and need as many to catch up.
STEPS, RATE = 500, 0.15


def train(control: StalenessControl, seed: int, steps: int = STEPS) -> tuple[float, list[int]]:
    """The accuracy on images that were not trained on, and the histogram of staleness."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = (digits.data / 16).astype("float32")[order], digits.target[order]
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])

    def batch_of(worker: int, step: int) -> tuple[Any, Any]:
        rows = np.random.default_rng([seed, worker, step]).integers(0, 1437, BATCH)
        return x[rows], y[rows]

    values = [np.array(variable) for variable in model.trainable_variables]
    shard = Shard(0, values, keras.optimizers.SGD(RATE), control, WORKERS)
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
    accuracy = model.evaluate(x[1437:], y[1437:], verbose=0)[1]
    return float(accuracy), staleness_histogram(log).tolist()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rates_by_staleness_reach_synchronous_accuracy(seed: int) -> None:
    fixed, _ = train(Asynchronous(), seed, steps=50)  # it has diverged by then
    aware, counts = train(Asynchronous("staleness"), seed)
    hard, of_hard = train(HardSync(), seed)
    print(f"fixed {fixed:.3f}, alpha0 / tau {aware:.3f}, hardsync {hard:.3f}")
    # It is 29 until the first workers have ended.
    assert 25 < np.average(np.arange(len(counts)), weights=counts) <= 29
    assert len(of_hard) == 1
    assert fixed < 0.2
    assert hard > 0.95
    assert aware > hard - 0.02
