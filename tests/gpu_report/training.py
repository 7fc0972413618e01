"""Compiled steps of a net: the weights of one process, the same bits on all ranks, and the time.

    ringarrun -np 2 python -m tests.gpu_report.training NET

Prints one line on rank 0; an assertion that fails ends the job.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import ringar

ROWS, STEPS = 64, 20
TOLERANCE = 2e-3
"""Of a weight, beside one process: cards add in TF32 and in an order of their choice."""


def mlp() -> keras.Model:
    return keras.Sequential(
        [keras.Input((64,)), layers.Dense(256, "relu"), layers.Dense(256, "relu"), layers.Dense(10)]
    )


def cnn() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((24, 24, 3)),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )


def transformer() -> keras.Model:
    x = inputs = keras.Input((16, 32))
    for _ in range(2):
        attention = layers.MultiHeadAttention(4, 8)(x, x)
        x = layers.LayerNormalization()(x + attention)
        x = layers.LayerNormalization()(x + layers.Dense(32)(layers.Dense(64, "relu")(x)))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


NETS: dict[str, Callable[[], keras.Model]] = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def compiled(net: str, optimizer: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = NETS[net]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=True)
    return model


def check(net: str) -> str:
    """Train beside one process, compare, and return what the steps took."""
    rank, size = ringar.rank(), ringar.size()
    rng = np.random.default_rng(0)
    reference = compiled(net, keras.optimizers.SGD(0.05))
    x = rng.normal(size=(ROWS * size, *reference.input_shape[1:])).astype("float32")
    y = rng.integers(10, size=len(x))
    batch = slice(ROWS * rank, ROWS * (rank + 1))
    model = compiled(net, ringar.DistributedOptimizer(keras.optimizers.SGD(0.05)))
    for _ in range(3):
        reference.train_on_batch(x, y)
        model.train_on_batch(x[batch], y[batch])
    for weight, expected in zip(model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(weight, expected, atol=TOLERANCE)
    for weight in model.get_weights():
        np.testing.assert_array_equal(ringar.broadcast(weight, 0), weight, "ranks differ")
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        model.train_on_batch(x[batch], y[batch])
        times.append(time.perf_counter() - start)
    devices = tf.config.list_physical_devices("GPU")
    where = "GPU" if devices else "CPU"
    return f"{where}: {1e3 * float(np.median(times)):.2f} ms a step of {ROWS} rows a rank"


def main(net: str) -> None:
    ringar.init()
    text = check(net)
    if ringar.rank() == 0:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1])
