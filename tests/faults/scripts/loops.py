"""Long loops of large allreduces, in the ways in which programs run them.

The loop of NumPy's arrays imports no TensorFlow, as its programs do not.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ringar

FOREVER = 10**9
LENGTH = 1_000_000  # 4 MB: several blocks per allreduce, on the engine's thread
Loop = Callable[[int], None]
"""Runs that many allreduces."""


def numpy_loop() -> Loop:
    array = np.ones(LENGTH, np.float32)

    def run(count: int) -> None:
        for _ in range(count):
            ringar.allreduce(array, name="loop")

    return run


def eager_loop() -> Loop:
    import tensorflow as tf

    tensor = tf.ones(LENGTH)

    def run(count: int) -> None:
        for _ in range(count):
            ringar.allreduce(tensor, name="loop")

    return run


def _loop_in_function(jit_compile: bool) -> Loop:
    import tensorflow as tf

    @tf.function(jit_compile=jit_compile, autograph=False)
    def loop(count: Any) -> Any:
        return tf.while_loop(
            lambda i, x: i < count,
            lambda i, x: (i + 1, ringar.allreduce(x, name="loop")),
            (tf.constant(0), tf.ones(LENGTH)),
        )[1]

    return lambda count: loop(tf.constant(count)).numpy()


def function_loop() -> Loop:
    return _loop_in_function(jit_compile=False)


def compiled_loop() -> Loop:
    return _loop_in_function(jit_compile=True)


def _fit(jit_compile: bool) -> Loop:
    import keras
    import tensorflow as tf

    model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(1000)])
    optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(0.0))
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    data = tf.data.Dataset.from_tensors((tf.ones((2, 1000)), tf.ones((2, 1000)))).repeat()

    def run(count: int) -> None:
        model.fit(data, steps_per_epoch=count, verbose=0)

    return run


def fit_loop() -> Loop:
    return _fit(jit_compile=False)


def compiled_fit_loop() -> Loop:
    return _fit(jit_compile=True)


LOOPS: dict[str, Callable[[], Loop]] = {
    "numpy": numpy_loop,
    "eager": eager_loop,
    "function": function_loop,
    "compiled": compiled_loop,
    "fit": fit_loop,
    "compiled fit": compiled_fit_loop,
}


def signal_myself(number: int, seconds: float) -> None:
    """Has this process get a signal soon, whatever its main thread is then in the middle of."""

    def run() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), number)

    threading.Thread(target=run, daemon=True).start()
