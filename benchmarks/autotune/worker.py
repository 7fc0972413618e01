"""Trains with Autotune, and then measures what it has chosen beside the defaults, in turn.

    python -m benchmarks.autotune.worker OPTIONS

The same model is trained without Autotune first, for as many steps: its weights are those to
compare with.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.worker import read_options, weights_differ, write_report

FEATURES = 256
EPOCH = 40
"""Steps."""
COMPARISONS, BEHIND_A_CHANGE = 10, 4
"""Samples of the comparison with the defaults; steps that do not count, at most."""


def search_steps(options: dict[str, Any]) -> int:
    """Returns how many steps a search takes at most."""
    samples = options["warmup"] + options["samples"] + COMPARISONS
    return int(samples * (options["steps"] + BEHIND_A_CHANGE))


def build(options: dict[str, Any]) -> Any:
    """Builds the model: dense layers of equal size."""
    import keras

    import ringar

    keras.utils.set_random_seed(1)
    dense = keras.layers.Dense
    layers = [dense(options["units"], activation="relu") for _ in range(options["layers"])]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers, dense(1)])
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(1e-3)), "mse")
    return model


def train(options: dict[str, Any]) -> Any:
    """Trains a model for as many steps as a search takes, and returns it."""
    import ringar

    rng = np.random.default_rng(ringar.rank())
    x = rng.random((EPOCH * options["batch"], FEATURES), np.float32)
    model = build(options)
    model.fit(
        x, x[:, :1], batch_size=options["batch"], shuffle=False, verbose=0,
        epochs=math.ceil(search_steps(options) / EPOCH), callbacks=[ringar.callbacks.Distributed()],
    )  # fmt: skip
    return model


def in_turn(model: Any, options: dict[str, Any]) -> dict[str, list[float]]:
    """Returns seconds per step of each round, with what was chosen and with the defaults."""
    import tensorflow as tf

    import ringar
    from ringar.keras import tuned

    x = np.zeros((options["batch"], FEATURES), np.float32)
    data = iter(tf.data.Dataset.from_tensors((x, x[:, :1])).repeat())
    functions: dict[str, Callable[[Any], Any]] = {"tuned": model.train_function}
    tuned.give(model, tuned.DEFAULTS)
    model.make_train_function(force=True)
    functions["defaults"] = model.train_function
    for function in functions.values():
        function(data)  # traces
    found: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(options["rounds"]):
        for name in list(functions)[:: 1 if number % 2 else -1]:
            functions[name](data)
            ringar.barrier()
            start = time.perf_counter()
            for _ in range(options["calls"]):
                functions[name](data)
            found[name].append((time.perf_counter() - start) / options["calls"])
    return found


def main() -> None:
    options = read_options()
    import ringar
    from ringar.keras import tuned

    ringar.init(intra_op_threads=1, inter_op_threads=2)
    plain = train(options).get_weights()
    os.environ.update({
        "RINGAR_AUTOTUNE": "1",
        "RINGAR_AUTOTUNE_WARMUP_SAMPLES": str(options["warmup"]),
        "RINGAR_AUTOTUNE_STEPS_PER_SAMPLE": str(options["steps"]),
        "RINGAR_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": str(options["samples"]),
        "RINGAR_AUTOTUNE_SETTINGS": options["settings"],
    })  # fmt: skip
    model = train(options)
    pairs = list(zip(model.get_weights(), plain, strict=True))
    report = {
        "settings": str(tuned.of(model)),
        "found": os.path.exists(options["settings"]),  # the search has ended
        "other_bits": sum(int(np.count_nonzero(a != b)) for a, b in pairs),
        "difference": max(float(np.max(np.abs(a - b))) for a, b in pairs),
        "differ": weights_differ(model),
        "seconds": in_turn(model, options),
    }
    write_report(options, ringar.rank(), report)
    ringar.shutdown()


if __name__ == "__main__":
    main()
