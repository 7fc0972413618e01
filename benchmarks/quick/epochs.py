"""Epochs of the digits, and when their first batches come: see benchmarks/quick/__main__.py."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.harness.worker import read_options, write_report

DATA = ("arrays", "Dataset")


def title(data: str, ranks: int) -> str:
    """Returns the name of a row."""
    return f"{data}, {ranks} rank{'s' if ranks > 1 else ''}"


def tuned(x: np.ndarray, y: np.ndarray, batch: int) -> Any:
    """Returns batches as a user makes them, of a pipeline that TensorFlow tunes."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000)
    data = data.map(lambda image, digit: (image / 16.0, digit), num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(batch).prefetch(tf.data.AUTOTUNE)


def main() -> None:
    options = read_options()
    import keras
    from sklearn.datasets import load_digits

    import ringar

    ringar.init()
    x, y = ringar.data.shard(load_digits(return_X_y=True))
    model = keras.Sequential([keras.Input([64]), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(ringar.DistributedOptimizer("sgd"), loss)
    waits: list[float] = []

    class Begins(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self._since = 0.0

        def on_train_begin(self, logs: object = None) -> None:
            self._since = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            self._since = time.perf_counter()

        def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
            if batch == 0:
                waits.append(time.perf_counter() - self._since)

    callbacks = [ringar.callbacks.Distributed(), Begins()]
    batch, epochs = 40 // ringar.size(), options["epochs"]
    if options["data"] == "arrays":
        model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0, callbacks=callbacks)
    else:
        model.fit(tuned(x, y, batch), epochs=epochs, verbose=0, callbacks=callbacks)
    write_report(options, ringar.rank(), {"waits": waits})


if __name__ == "__main__":
    main()
