"""Trains a net on cut images, on one rank: `python -m benchmarks.partitioned.worker OPTIONS`.

The first two steps are taken for their losses, which must be those of one rank. Then steps are
timed. With a limit, the process may take so many bytes more than it has before the first step, and
reports whether it could train.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.worker import now_bytes, peak_bytes, read_options, train, write_report

if TYPE_CHECKING:
    import keras

CLASSES, CHECKED_STEPS = 10, 2


def net(options: dict[str, Any]) -> keras.Model:
    """Returns layers of one connectivity, each with as many activations as the images."""
    import keras

    import ringar

    side, channels, layers = options["side"], options["channels"], ringar.layers
    images = x = keras.Input((side, side, options.get("colors", channels)))
    if options["kind"] == "dense":
        x = keras.layers.Flatten()(x)
        for i in range(options["layers"]):
            reads = "all" if i else "whole"
            x = layers.SplitDense(side * side * channels, reads=reads, activation="tanh",
                                  name=f"layer{i}")(x)  # fmt: skip
        x = layers.Gather(name="join")(x)
    else:
        kinds: dict[str, Any] = {"convolution": layers.PartitionedConv2D,
                 "local": layers.PartitionedLocallyConnected2D}  # fmt: skip
        x = layers.CutPlane(name="cut")(x)
        for i in range(options["layers"]):
            x = kinds[options["kind"]](channels, options["kernel"], padding="same",
                                       activation="tanh", name=f"layer{i}")(x)  # fmt: skip
        x = layers.PartitionedGlobalAveragePooling2D(name="join")(x)
    return keras.Model(images, keras.layers.Dense(CLASSES, name="classes")(x))


def batch(options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Returns one batch, the same in every process."""
    rng = np.random.default_rng(5)
    shape = (options["batch"], *[options["side"]] * 2, options.get("colors", options["channels"]))
    images = rng.standard_normal(shape, dtype=np.float32)
    return images, rng.integers(0, CLASSES, options["batch"])


def limit_memory(extra_bytes: int) -> None:
    """Lets this process take so many bytes more than it has now."""
    status = Path("/proc/self/status").read_text().splitlines()
    data = next(line for line in status if line.startswith("VmData:"))
    limit = int(data.split()[1]) * 1024 + extra_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def expected_bytes(model: keras.Model, options: dict[str, Any]) -> dict[str, int]:
    """Returns what this rank sends for each layer and step, by the formulas of the docs."""
    import ringar

    ranks, numbers = ringar.size(), 4 * options["batch"]
    volumes = {}
    for i in range(options["layers"]):
        layer = model.get_layer(f"layer{i}")
        if options["kind"] == "dense":
            # Backward a reduce-scatter; the first layer reads the images, which have no gradient.
            volumes[layer.name] = 2 * (ranks - 1) * numbers * int(layer.units) if i else 0
            continue
        me, reach = ringar.rank(), layer.reach
        pixels = reach.pixels_sent(me)
        came = sum(reach.message(part, me).area for part in range(ranks) if part != me) if i else 0
        channels = layer.input.shape[-1]
        volumes[layer.name] = (pixels + came) * channels * numbers
    return {name: count for name, count in volumes.items() if count}


def measure(model: keras.Model, options: dict[str, Any]) -> dict[str, Any]:
    """Trains, and returns losses, times and traffic."""
    import tensorflow as tf

    import ringar

    dataset = tf.data.Dataset.from_tensors(batch(options)).repeat()
    losses, rounds = train(model, dataset, CHECKED_STEPS, options)
    steps = options["rounds"] * options["steps"]
    traffic = ringar.stats(by="layer")
    volumes = {name: entry.bytes / steps for name, entry in traffic.items() if entry.bytes}
    expected = expected_bytes(model, options)
    return {
        "losses": losses,
        "rounds": rounds,
        "bytes": volumes,
        "wrong_bytes": [name for name, count in expected.items() if volumes.get(name, 0) != count],
    }


def main() -> None:
    options = read_options()
    import keras
    import tensorflow as tf

    import ringar

    ringar.init(deadline=120, intra_op_threads=1)
    keras.utils.set_random_seed(1)
    grid = ringar.parallel.Grid(model=ringar.size())
    model = net(options)
    optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(0.1), grid=grid)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = now_bytes()
    result: dict[str, Any] = {"parameters": int(model.count_params()), "error": ""}
    if options.get("limit"):
        limit_memory(options["limit"])
    try:
        result |= measure(model, options)
    except tf.errors.ResourceExhaustedError as error:
        if not options.get("limit"):
            raise
        result["error"] = str(error).splitlines()[0][:200]
    result["memory"] = peak_bytes() - before
    write_report(options, ringar.rank(), result)
    if not result["error"]:
        ringar.shutdown()


if __name__ == "__main__":
    main()
