"""Measures one rank: `python -m benchmarks.sharded.worker OPTIONS`.

`memory` makes the optimizer's slots and takes one step, in a process of its own. `time` trains
copies of a model without shards and by each stage in turn, so that a slow minute of the machine
is one of all of them; their losses must agree.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.worker import now_bytes, read_options, start, write_report
from benchmarks.training import models

WARM_STEPS = 2
TOKENS = 64
WAYS: tuple[str | None, ...] = (None, "optimizer", "gradients", "weights")
OFFLOADED = "gradients, disk"
"""A way of the memory alone: stage 2 with slots in a file."""

Options = dict[str, Any]


def dense_layers(layers: int, width: int) -> Any:
    """Builds dense layers of `width` squared weights each."""
    import keras

    stack = [keras.layers.Dense(width, activation="relu") for _ in range(layers)]
    return keras.Sequential([keras.Input((width,)), *stack])


def transformer(layers: int = 12, width: int = 512) -> Any:
    """Builds an encoder of 12 layers of width 512: 37.8 million parameters."""
    import keras

    kl = keras.layers
    x = inputs = keras.Input((TOKENS, width))
    for _ in range(layers):
        y = kl.LayerNormalization()(x)
        x = kl.Add()([x, kl.MultiHeadAttention(8, width // 8)(y, y)])
        y = kl.Dense(4 * width, activation="gelu")(kl.LayerNormalization()(x))
        x = kl.Add()([x, kl.Dense(width)(y)])
    return keras.Model(inputs, x)


MODELS: dict[str, tuple[Callable[[], Any], int]] = {
    "mlp": models.MODELS["mlp"],
    "alexnet": models.MODELS["alexnet"],
    "transformer": (transformer, 4),
}
"""Name: how to make it, and examples per rank and step."""


def trainer(make: Callable[[], Any], shard: Any, examples: int, offload: Any = None) -> Any:
    """Returns the optimizer, and a compiled step that returns the loss."""
    import keras
    import tensorflow as tf

    import ringar

    keras.utils.set_random_seed(1)
    model = make()
    adam = keras.optimizers.Adam(1e-4)
    optimizer = ringar.DistributedOptimizer(adam, shard=shard, offload=offload)
    x, y = (tf.constant(array) for array in models.data_for(model, examples))

    @tf.function(autograph=False)
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return model, optimizer, step


def memory(options: Options) -> dict[str, Any]:
    """Returns the resident memory of weights and slots, and the greatest of a step."""
    import tensorflow as tf

    import ringar

    shard, offload = options["shard"], None
    if shard == OFFLOADED:
        shard, offload = "gradients", "disk"
    tf.matmul(*[tf.ones((512, 512))] * 2)  # threads and arenas are no memory of the model
    before = now_bytes()
    model, optimizer, step = trainer(
        lambda: dense_layers(options["layers"], options["width"]),
        shard,
        options["examples"],
        offload,
    )
    weights = sum(4 * int(np.prod(w.shape)) for w in model.weights)
    optimizer.build(model.trainable_variables)
    ctypes.CDLL(None).malloc_trim(0)  # freed memory, as of whole weights, does not count
    usage = now_bytes() - before
    losses = [float(step()) for _ in range(2)]
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    ringar.barrier()
    losses.append(float(step()))
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024
    return {"weights": weights, "held": usage, "peak": peak - before, "losses": losses}


def timing(options: Options) -> dict[str, Any]:
    """Returns the seconds of each way's steps by round, and the bytes that a step sends."""
    import ringar

    make, examples = MODELS[options["model"]]
    steps = {}
    for way in WAYS:
        model, optimizer, steps[way or "none"] = trainer(make, way, examples)
        optimizer.build(model.trainable_variables)
    losses: dict[str, list[float]] = {name: [] for name in steps}
    seconds: dict[str, list[list[float]]] = {name: [] for name in steps}
    volumes = {}
    for name, step in steps.items():
        losses[name] = [float(step()) for _ in range(WARM_STEPS)]
        ringar.reset_stats()
        losses[name].append(float(step()))
        volumes[name] = sum(traffic.bytes for traffic in ringar.stats("collective").values())
    for _ in range(options["rounds"]):
        for name, step in steps.items():
            times = []
            for _ in range(options["steps"]):
                begin = time.perf_counter()
                step()
                times.append(time.perf_counter() - begin)
            seconds[name].append(times)
    return {"seconds": seconds, "bytes": volumes, "losses": losses}


def main() -> None:
    options = read_options()
    rank = start(options, deadline=300)
    task = {"memory": memory, "time": timing}[options["task"]]
    write_report(options, rank, task(options))
    import ringar

    ringar.shutdown()


if __name__ == "__main__":
    main()
