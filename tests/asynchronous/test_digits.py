"""Accuracy that local SGD loses by fewer exchanges, on images of digits: means over seeds."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import ringar
from tests.asynchronous.problems import TRAINED, loss, problem

pytestmark = [
    pytest.mark.usefixtures("initialized"),
    pytest.mark.ranks(2, 4),
    pytest.mark.slow,
    pytest.mark.deadline(400),
]

SEEDS, EPOCHS = 4, 25
RATES = {"dense": 0.1, "sparse": 0.03}


def accuracy(kind: str, period: int, seed: int, rank: int, size: int) -> float:
    """Return the accuracy of local SGD on images that were not trained on."""
    task = problem(kind)
    model = task.model(seed)
    optimizer = ringar.LocalSGD(keras.optimizers.SGD(RATES[kind]), period)
    model.compile(optimizer, loss(), metrics=["accuracy"])
    rows = slice(rank, TRAINED, size)
    data = task.x[rows], task.y[rows]
    callbacks = [ringar.callbacks.Distributed()]
    model.fit(*data, batch_size=8, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return float(model.evaluate(task.x[TRAINED:], task.y[TRAINED:], verbose=0)[1])


@pytest.mark.parametrize("kind", RATES)
def test_periods_of_16_steps_lose_less_than_a_point(kind: str, rank: int, size: int) -> None:
    accuracies = {
        period: np.mean([accuracy(kind, period, seed, rank, size) for seed in range(SEEDS)])
        for period in (1, 16)
    }
    assert accuracies[1] > 0.95, accuracies
    assert accuracies[16] > accuracies[1] - 0.01, accuracies
