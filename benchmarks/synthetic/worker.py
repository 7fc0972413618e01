"""Trains digits in modules on one rank: `python -m benchmarks.synthetic.worker OPTIONS`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any

import numpy as np

from benchmarks.harness.worker import read_options, start, write_report

BATCH, STOP_AT, STOP_STEPS = 32, 20, 400
CUTS = {2: ["conv2"], 4: ["conv1", "conv2", "hidden"]}
WAYS: dict[str, dict[str, Any]] = {
    "true": {"synthesizer": "true"},
    "conditioned": {"conditioned": True},
    "lambda": {"conditioned": True, "bp_lambda": 1.0},
    "unconditioned": {},
    "inputs": {"conditioned": True, "synthetic_inputs": True},
    "sparse": {"conditioned": True, "update_probability": 0.5},
    "zero": {"synthesizer": "zero"},
}
REPLAYED = ("conditioned", "lambda", "unconditioned", "inputs", "sparse")


def digits() -> Any:
    """Returns images to train and to test on."""
    from sklearn.datasets import load_digits

    dataset = load_digits()
    order = np.random.default_rng(0).permutation(len(dataset.target))
    x = (dataset.images[..., None] / 16).astype("float32")[order]
    y = dataset.target[order]
    return (x[:1437], y[:1437]), (x[1437:], y[1437:])


def net(seed: int) -> Any:
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu", name="conv1"),
            layers.Conv2D(32, 3, padding="same", activation="relu", name="conv2"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(64, activation="relu", name="hidden"),
            layers.Dense(10, name="logits"),
        ]
    )


def modules(options: dict[str, Any]) -> Any:
    """Returns the compiled model of a way."""
    import keras

    import ringar

    way, ranks = options["way"], options["ranks"]
    arguments: dict[str, Any] = {"schedule": "delayed"}
    if way in WAYS:
        ahead = STOP_STEPS if options["stop"] else 4
        arguments = {"schedule": "synthetic", "ahead": ahead, **WAYS[way]}
    model = ringar.parallel.Pipelined(net(options["seed"]), cuts=CUTS[ranks], **arguments)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model


def steps_of(model: Any, data: Any, steps: int, stop: float) -> tuple[list[float], list[float]]:
    """Trains one epoch; returns when each step ended, and when this rank was stopped."""
    import keras
    import tensorflow as tf

    import ringar

    ends, pause = [], [0.0, 0.0]

    def note(batch: int, logs: Any = None) -> None:
        ends.append(time.monotonic())
        if stop and batch == STOP_AT and ringar.rank() == ringar.size() - 1:
            subprocess.Popen(["sh", "-c", f"sleep {stop}; kill -CONT {os.getpid()}"])
            pause[0] = time.monotonic()
            os.kill(os.getpid(), signal.SIGSTOP)
            pause[1] = time.monotonic()

    dataset = tf.data.Dataset.from_tensor_slices(data).batch(BATCH, drop_remainder=True).repeat()
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    model.fit(dataset, steps_per_epoch=steps, verbose=0, callbacks=[callback])
    return ends, pause


def replayed_wrong(model: Any, train: Any) -> int:
    """Trains one epoch and repeats it in one process; counts weights that differ in a bit."""
    import tensorflow as tf

    import ringar

    data = tf.data.Dataset.from_tensor_slices(train).batch(BATCH).take(20)
    model.record_messages()
    model.fit(data, verbose=0)
    logs = model.record_messages(on=False)
    weights = model.whole().get_weights()
    if ringar.rank() > 0:
        return 0
    again = model.replay(logs, data).get_weights()
    return sum(int(np.count_nonzero(a != b)) for a, b in zip(weights, again, strict=True))


def main() -> None:
    options = read_options()
    rank = start(options, deadline=120)
    train, test = digits()
    if options["stop"]:
        model = modules(options)
        steps_of(model, train, 10, 0.0)  # to get warm
        ends, pause = steps_of(model, train, STOP_STEPS, options["stop"])
        report: dict[str, Any] = {"ends": ends, "stop": pause}
    else:
        model = modules(options)
        accuracy, times = [], []
        for _ in range(options["epochs"]):
            begin = time.monotonic()
            model.fit(*train, batch_size=BATCH, verbose=0)
            times.append((time.monotonic() - begin) / -(-len(train[0]) // BATCH))
            result = model.evaluate(*test, batch_size=360, verbose=0, return_dict=True)
            accuracy.append(result["accuracy"])
        errors = replayed_wrong(modules(options), train) if options["way"] in REPLAYED else 0
        report = {"accuracy": accuracy, "step": float(np.median(times)), "wrong": errors}
    write_report(options, rank, report)
    import ringar

    ringar.shutdown()


if __name__ == "__main__":
    main()
