"""Delayed gradients learn handwritten digits as well as ordinary training does."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import ringar
from benchmarks.synthetic.worker import CUTS, digits, net
from ringar.parallel import Pipelined
from tests.parallel.conftest import OpenGrid

pytestmark = [
    pytest.mark.usefixtures("initialized"),
    pytest.mark.ranks(2, 4),
    pytest.mark.slow,
    pytest.mark.deadline(400),
]

SEEDS, EPOCHS, POINTS = (1, 2, 3), 15, 0.5


def accuracy(model: keras.Model) -> float:
    """After training, in percent of the images that it has not seen."""
    train, test = digits()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    model.fit(*train, batch_size=32, epochs=EPOCHS, verbose=0)
    result: dict[str, Any] = model.evaluate(*test, batch_size=360, return_dict=True, verbose=0)
    return 100 * float(result["accuracy"])


def test_accuracy(open_grid: OpenGrid, size: int, rank: int) -> None:
    plain = [accuracy(net(seed)) for seed in SEEDS] if rank == 0 else None
    grid = open_grid(size)
    mean = {"ordinary": np.mean(ringar.broadcast_object(plain))}
    for schedule in ("delayed", "decoupled"):
        mean[schedule] = np.mean(
            [
                accuracy(Pipelined(net(seed), schedule=schedule, cuts=CUTS[size], grid=grid))
                for seed in SEEDS
            ]
        )
    print(mean)
    assert mean["ordinary"] > 97
    assert mean["delayed"] >= mean["ordinary"] - POINTS, mean
    assert mean["decoupled"] >= mean["ordinary"] - POINTS, mean
