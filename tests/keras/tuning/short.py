"""What the tests of Autotune share: a short search, a model and its data."""

from __future__ import annotations

import keras
import numpy as np

import ringar
from tests.keras import common

WIDTH, STEPS = 300, 30
#: Warm-up, search and comparison: 1 + 3 + 10 samples of 2 steps, 2 of them more behind a change.
LENGTHS = {"WARMUP_SAMPLES": "1", "STEPS_PER_SAMPLE": "2", "BAYES_OPT_MAX_SAMPLES": "3"}


def layers(seed: int = 0) -> keras.Model:
    """0.7 MB, for which three sizes of the first bucket make different steps."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((6,)),
            *(keras.layers.Dense(WIDTH, activation="tanh") for _ in range(3)),
            keras.layers.Dense(1),
        ]
    )


def data(steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """This rank's rows, 2 for each step."""
    x, y = common.regression(rows=steps * 2 * ringar.size())
    return x[ringar.rank() :: ringar.size()], y[ringar.rank() :: ringar.size()]
