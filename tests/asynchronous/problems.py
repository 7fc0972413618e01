"""Two problems on images of digits, for statistics: a dense net, and one with sparse inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np

PIXELS, SHADES, CLASSES = 64, 17, 10
TRAINED = 1437
"""The number of images to train on; the others are for the accuracy."""


@dataclass(frozen=True)
class Problem:
    """Images in a fixed order, and a model for them.

    Attributes:
        x: the images, in the form that the model takes.
        y: their classes.
        make: returns the model, which ends with logits.
    """

    x: np.ndarray
    y: np.ndarray
    make: Callable[[], keras.Model]

    def model(self, seed: int) -> keras.Model:
        """Return the model with the first weights of a seed."""
        keras.utils.set_random_seed(seed)
        return self.make()


def _dense() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((PIXELS,)), layers.Dense(64, activation="relu"), layers.Dense(CLASSES)]
    )


def _sparse() -> keras.Model:
    """The same net with a row of weights for each shade of a pixel, of which a step reads a few."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((PIXELS,), dtype="int32"),
            layers.Embedding(PIXELS * SHADES, 64),
            layers.GlobalAveragePooling1D(),
            layers.Rescaling(PIXELS),
            layers.ReLU(),
            layers.Dense(CLASSES),
        ]
    )


def problem(kind: str) -> Problem:
    """Return the "dense" problem, or the "sparse" one."""
    from sklearn.datasets import load_digits  # takes a second, which few tests need

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = digits.data[order], digits.target[order]
    if kind == "dense":
        return Problem((x / 16).astype("float32"), y, _dense)
    return Problem(x.astype("int32") + SHADES * np.arange(PIXELS, dtype="int32"), y, _sparse)


def loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
