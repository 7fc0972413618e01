"""Trains with and without Autotune, which tries algorithms between hosts."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import keras

import ringar
from ringar.keras import tuned
from tests.faults.job import attempt
from tests.keras import common


def train() -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(300, activation="tanh") for _ in range(3)]
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    x, y = common.regression(rows=2 * 2 * 60)
    rows = slice(ringar.rank(), None, 2)
    model.fit(
        x[rows], y[rows], batch_size=2, shuffle=False, epochs=2, verbose=0,
        callbacks=[ringar.callbacks.Distributed()],
    )  # fmt: skip
    return model


def tuned_training() -> None:
    start = common.values(train())
    log = Path(sys.argv[1], "log.csv")
    os.environ.update({
        "RINGAR_AUTOTUNE": "1",
        "RINGAR_AUTOTUNE_LOG": str(log),
        "RINGAR_AUTOTUNE_WARMUP_SAMPLES": "0",
        "RINGAR_AUTOTUNE_STEPS_PER_SAMPLE": "1",
        "RINGAR_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "12",
    })  # fmt: skip
    model = train()
    state = (common.digest(model), tuned.of(model))
    assert ringar.allgather_object(state) == [state] * 2, "other weights or settings elsewhere"
    assert common.largest_difference(common.values(model), start) < 1e-5
    if ringar.rank() == 0:
        with log.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows[-1]["phase"] == "chosen"
        assert len({row["algorithm"] for row in rows}) > 1, rows
        assert {row["compression"] for row in rows} == {"none"}


ringar.init(deadline=30)
attempt("tuned training", tuned_training)
ringar.shutdown()
