"""Trains with as much communication as computation.

    python -m benchmarks.hosts.fit_worker OPTIONS

Measures a step without exchange first, sets the rate of the link so that the exchange alone takes
as long, and then measures both, and the step that has both, in turn. Each host has one rank. In the
end the weights of all ranks are compared.

No step can be shorter than a forward pass and an exchange, since the first gradient comes after the
forward pass. A step of equal parts can therefore come near the longer of them only if forward
passes are cheap. So the model has depthwise convolutions, whose gradients take TensorFlow eight
times as long as their outputs. Nearly all weights are in the dense layers above them, whose
gradients come first.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.worker import read_options, weights_differ, write_report
from tests.hosts.hosts import bucket, payload_part

Step = Callable[[], Any]
LAYERS, KERNEL, CHANNELS, SIDE = 80, 7, 32, 40
DENSE_LAYERS, DENSE_UNITS = 8, 1024
LEARNING_RATE = 1e-4


def build() -> Any:
    """Builds the model: 30.0 MB of weights, most of them in dense layers."""
    import keras

    layers = keras.layers
    inputs = value = keras.Input((SIDE, SIDE, CHANNELS))
    for _ in range(LAYERS):
        value = layers.DepthwiseConv2D(KERNEL, padding="same", activation="relu")(value)
    value = layers.GlobalAveragePooling2D()(value)
    for _ in range(DENSE_LAYERS):
        value = layers.Dense(DENSE_UNITS, activation="relu")(value)
    return keras.Model(inputs, layers.Dense(1)(value))


class Training:
    """The model, its batch, and the functions that are measured."""

    def __init__(self, rank: int, batch: int) -> None:
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(1)
        self.model = build()
        rng = np.random.default_rng(rank)
        self.inputs = rng.random((batch, SIDE, SIDE, CHANNELS), np.float32)
        targets = rng.random((batch, 1), np.float32)
        self._data = iter(tf.data.Dataset.from_tensors((self.inputs, targets)).repeat())
        self._references: list[Any] = []

    def step(self, distributed: bool) -> Step:
        """Returns a training step of `fit`, with or without the exchange of gradients."""
        import keras

        import ringar

        optimizer: Any = keras.optimizers.SGD(LEARNING_RATE)
        if distributed:
            optimizer = ringar.DistributedOptimizer(optimizer)
        self.model.compile(optimizer, "mse")
        self.model.make_train_function()
        function = self.model.train_function
        function(self._data)  # traces, with the optimizer that the model has just now
        self._references.append((optimizer, self.model._loss_tracker))
        return lambda: function(self._data)

    def forward(self) -> Step:
        """Returns a forward pass."""
        import tensorflow as tf

        inputs = tf.constant(self.inputs)
        function = tf.function(lambda: self.model(inputs, training=True))
        function()
        return lambda: function().numpy()

    def exchange(self) -> Step:
        """Returns the exchange alone: as many bytes, in the same buckets."""
        import ringar
        from ringar.keras import buckets

        variables = self.model.trainable_variables
        plan = [
            [np.zeros(variables[i].shape, np.float32) for i in bucket.indices]
            for bucket in buckets.plan(variables)
        ]

        def run() -> None:
            for number, arrays in enumerate(plan):
                ringar.grouped_allreduce(arrays, name=f"bucket {number}")

        run()
        return run

    @property
    def gradient_bytes(self) -> int:
        """The bytes that a step exchanges."""
        return int(sum(np.prod(v.shape) for v in self.model.trainable_variables)) * 4


def seconds(run: Step, calls: int) -> tuple[float, float]:
    """Returns seconds per call until all ranks have ended, and seconds of the processor."""
    import ringar

    run()
    ringar.barrier()
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(calls):
        run()
    busy = time.process_time() - busy
    ringar.barrier()
    return (time.perf_counter() - start) / calls, busy / calls


def set_rate(rate_mbit: float) -> None:
    """Sets the rate of this host's link."""
    words = ["tc", "qdisc", "change", "dev", "eth0", *bucket(rate_mbit)]
    subprocess.run(words, check=True, capture_output=True)


def balance(training: Training, compute: float, mtu: int) -> float:
    """Sets the rate at which the exchange takes as long as the computation; returns Mbit/s."""
    import ringar

    ranks = ringar.size()
    volume = training.gradient_bytes * 2 * (ranks - 1) / ranks
    slowest = max(ringar.allgather_object(compute))
    rate = volume / slowest / payload_part(mtu) * 8 / 1e6
    set_rate(rate)
    ringar.barrier()
    return rate


def main() -> None:
    options = read_options()
    import ringar

    ringar.init(intra_op_threads=1, inter_op_threads=2)
    training = Training(ringar.rank(), options["batch"])
    compute, forward = training.step(distributed=False), training.forward()
    seconds(compute, 1)
    rate = balance(training, seconds(compute, options["steps"])[0], options["mtu"])
    steps = {"compute": compute, "communicate": training.exchange(), "forward": forward}
    ringar.broadcast_variables(training.model.variables, root_rank=0)
    steps["both"] = training.step(distributed=True)
    wall_seconds: dict[str, list[float]] = {name: [] for name in steps}
    busy: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options["rounds"]):
        for name, run in steps.items():
            wall, processor = seconds(run, options["steps"])
            wall_seconds[name].append(wall)
            busy[name].append(processor)
    ringar.broadcast_variables(training.model.variables, root_rank=0)
    for _ in range(2):
        steps["both"]()
    report = {
        "rate_mbit": rate,
        "gradient_bytes": training.gradient_bytes,
        "seconds": wall_seconds,
        "processor": busy,
        "wrong": weights_differ(training.model),
    }
    write_report(options, ringar.rank(), report)
    ringar.shutdown()


if __name__ == "__main__":
    main()
