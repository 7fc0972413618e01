"""Measures one rank: `python -m benchmarks.sharded.worker OPTIONS`.

`memory` makes the optimizer's slots and takes one step, in a process of its own. `time` trains
copies of a model without shards and by each stage in turn, so that a slow minute of the machine
is one of all of them; their losses must agree.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.worker import now_bytes, read_options, start, write_report
from benchmarks.training import models

WARM_STEPS = 2
TOKENS = 64
WAYS: tuple[str | None, ...] = (None, "optimizer", "gradients")
OFFLOADED = "gradients, disk"
"""A way of the memory alone: stage 2 with slots in a file."""

Options = dict[str, Any]


def wide(layers: int, width: int) -> Any:
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
    x, y = (tf.constant(one) for one in models.data_for(model, examples))

    @tf.function(autograph=False)
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return model, optimizer, step


def resident_bytes(array: np.ndarray) -> int:
    """Returns the bytes of an array's pages that are in memory."""
    page = os.sysconf("SC_PAGE_SIZE")
    first = array.ctypes.data // page
    count = (array.ctypes.data + array.nbytes - 1) // page - first + 1
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        file.seek(8 * first)
        entries = np.frombuffer(file.read(8 * count), np.uint64)
    return int((entries >> np.uint64(63)).sum()) * page  # the bit of a page that is present


def slot_bytes(optimizer: Any) -> int:
    """Returns the resident bytes of an optimizer's slots: the pages of their own buffers.

    What the process as a whole has grown by is no measure. The allocator gives slots memory that
    the making of the model has left, and keeps memory of its own, some 10 to 40 MB.
    """
    values = [slot.value for slot in optimizer.variables]
    # Not `numpy`, which copies.
    arrays = [np.asarray(v.read_value()) for v in values if hasattr(v, "read_value")]
    return sum(resident_bytes(array) for array in arrays)


def anonymous_bytes() -> int:
    """Returns the memory of this process that no file backs."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) * 1024


def memory(options: Options) -> dict[str, Any]:
    """Returns the bytes of slots, as resident memory, and the greatest of a step."""
    import ringar

    shard, offload = options["shard"], None
    if shard == OFFLOADED:
        shard, offload = "gradients", "disk"
    model, optimizer, step = trainer(
        lambda: wide(options["layers"], options["width"]), shard, options["examples"], offload
    )
    weights = sum(4 * int(np.prod(w.shape)) for w in model.weights)
    ctypes.CDLL(None).malloc_trim(0)  # else slots take memory that was never given back
    base = now_bytes() - weights
    before = anonymous_bytes()
    optimizer.build(model.trainable_variables)
    grown = anonymous_bytes() - before
    losses = [float(step()) for _ in range(2)]
    slots = slot_bytes(optimizer)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    ringar.barrier()
    losses.append(float(step()))
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024
    return {
        "weights": weights, "slots": slots, "grown": grown, "peak": peak - base, "losses": losses
    }  # fmt: skip


def timing(options: Options) -> dict[str, Any]:
    """Returns the seconds of each way's steps by round, and the bytes that a step sends."""
    import ringar

    make, examples = MODELS[options["model"]]
    steps = {way or "none": trainer(make, way, examples)[2] for way in WAYS}
    losses: dict[str, list[float]] = {name: [] for name in steps}
    seconds: dict[str, list[list[float]]] = {name: [] for name in steps}
    sent = {}
    for name, step in steps.items():
        losses[name] = [float(step()) for _ in range(WARM_STEPS)]
        ringar.reset_stats()
        losses[name].append(float(step()))
        sent[name] = sum(one.bytes for one in ringar.stats("collective").values())
    for _ in range(options["rounds"]):
        for name, step in steps.items():
            taken = []
            for _ in range(options["steps"]):
                begin = time.perf_counter()
                step()
                taken.append(time.perf_counter() - begin)
            seconds[name].append(taken)
    return {"seconds": seconds, "bytes": sent, "losses": losses}


def main() -> None:
    options = read_options()
    rank = start(options, deadline=300)
    task = {"memory": memory, "time": timing}[options["task"]]
    write_report(options, rank, task(options))
    import ringar

    ringar.shutdown()


if __name__ == "__main__":
    main()
