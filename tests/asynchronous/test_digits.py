"""What fewer exchanges cost on images of digits: means over several seeds."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

import ringar

pytestmark = [
    pytest.mark.usefixtures("initialized"),
    pytest.mark.ranks(2, 4),
    pytest.mark.slow,
    pytest.mark.deadline(400),
]

SEEDS, EPOCHS, TRAINED = 4, 25, 1437


def accuracy(period: int, seed: int, rank: int, size: int) -> float:
    """That of local SGD on images that were not trained on."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = (digits.data / 16).astype("float32")[order], digits.target[order]
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(ringar.LocalSGD(keras.optimizers.SGD(0.1), period), loss, metrics=["accuracy"])
    own = slice(rank, TRAINED, size)
    callbacks = [ringar.callbacks.Distributed()]
    model.fit(x[own], y[own], batch_size=8, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return float(model.evaluate(x[TRAINED:], y[TRAINED:], verbose=0)[1])


def test_periods_of_16_steps_lose_less_than_a_point(rank: int, size: int) -> None:
    found = {
        period: np.mean([accuracy(period, seed, rank, size) for seed in range(SEEDS)])
        for period in (1, 16)
    }
    assert found[1] > 0.95, found
    assert found[16] > found[1] - 0.01, found
