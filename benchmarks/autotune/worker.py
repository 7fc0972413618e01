"""Trains with Autotune, and then measures what it has chosen beside a full grid, in turn.

    python -m benchmarks.autotune.worker OPTIONS

The same model is trained without Autotune first, for some epochs: its weights are those to compare
with, and are compared while the other one's settings change.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.worker import read_options, weights_differ, write_report

if TYPE_CHECKING:
    from ringar.keras.tuned import Settings

FEATURES = 256
EPOCH = 20
"""Steps."""
COMPARED = 3
"""Epochs, behind which weights are compared: the first settings have been tried."""
COMPARISONS, BEHIND_A_CHANGE = 10, 4
"""Samples of the comparison with the defaults; steps that do not count, at most."""
FINALISTS = 3
"""Settings of the grid that are measured again: one measurement each may mislead."""

Weights = list[np.ndarray]
Step = Callable[[Any], Any]


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


def train(options: dict[str, Any], epochs: int) -> tuple[Any, Weights]:
    """Trains a model until its search has ended; returns it, and its weights behind some epochs."""
    import keras

    import ringar

    distributed = ringar.callbacks.Distributed()
    compared: list[Weights] = []

    def at_end_of_epoch(epoch: int, logs: Any) -> None:
        if epoch + 1 == COMPARED:
            compared.append(model.get_weights())
        if epoch + 1 >= COMPARED and distributed.tuner is None:
            model.stop_training = True

    rng = np.random.default_rng(ringar.rank())
    x = rng.random((EPOCH * options["batch"], FEATURES), np.float32)
    model = build(options)
    model.fit(
        x, x[:, :1], batch_size=options["batch"], shuffle=False, verbose=0, epochs=epochs,
        callbacks=[distributed, keras.callbacks.LambdaCallback(on_epoch_end=at_end_of_epoch)],
    )  # fmt: skip
    return model, compared[0]


class Steps:
    """Makes the step of a model with given settings, and measures it."""

    def __init__(self, model: Any, options: dict[str, Any]) -> None:
        import tensorflow as tf

        self._model, self._calls = model, options["calls"]
        x = np.zeros((options["batch"], FEATURES), np.float32)
        self._data = iter(tf.data.Dataset.from_tensors((x, x[:, :1])).repeat())

    def make(self, settings: Settings) -> Step:
        """Returns the step, which has been traced."""
        from ringar.keras import tuned

        tuned.give(self._model, settings)
        self._model.make_train_function(force=True)
        step: Step = self._model.train_function
        step(self._data)
        return step

    def seconds(self, step: Step) -> float:
        """Returns the median of some calls, on the slowest rank."""
        import ringar

        step(self._data)
        ringar.barrier()
        times = [time.perf_counter()]
        for _ in range(self._calls):
            step(self._data)
            times.append(time.perf_counter())
        seconds = median(b - a for a, b in itertools.pairwise(times))
        return float(max(ringar.allgather_object(seconds)))


def grid_of(model: Any) -> list[Settings]:
    """Returns all settings that make different steps of a model."""
    import ringar
    from ringar.job import place
    from ringar.keras.buckets import Spec
    from ringar.keras.tuning.space import Job, Space

    specs = tuple(Spec.of(variable) for variable in model.trainable_variables)
    space = Space(Job(ringar.size(), len(set(place.hosts())), specs))
    values = itertools.product(*space.dimensions.values())
    grid = (space.settings(dict(zip(space.dimensions, point, strict=True))) for point in values)
    return list(dict.fromkeys(grid))


def in_turn(model: Any, chosen: Settings, options: dict[str, Any]) -> dict[str, Any]:
    """Measures the grid, then in turn its fastest settings, the chosen ones and the defaults."""
    from ringar.keras.tuned import DEFAULTS

    steps = Steps(model, options)
    grid = {settings: steps.seconds(steps.make(settings)) for settings in grid_of(model)}
    fastest = sorted(grid, key=grid.__getitem__)[:FINALISTS]
    functions = {
        settings: steps.make(settings) for settings in dict.fromkeys([chosen, DEFAULTS, *fastest])
    }
    times: dict[Settings, list[float]] = {settings: [] for settings in functions}
    for number in range(options["rounds"]):
        for settings in list(functions)[:: 1 if number % 2 else -1]:
            times[settings].append(steps.seconds(functions[settings]))
    return {
        "grid": {str(settings): seconds for settings, seconds in grid.items()},
        "seconds": {
            "tuned": times[chosen],
            "defaults": times[DEFAULTS],
            "fastest": {str(settings): times[settings] for settings in fastest},
        },
    }


def main() -> None:
    options = read_options()
    import ringar
    from ringar.keras import tuned

    ringar.init(intra_op_threads=1, inter_op_threads=2)
    _, plain = train(options, COMPARED)
    os.environ.update({
        "RINGAR_AUTOTUNE": "1",
        "RINGAR_AUTOTUNE_WARMUP_SAMPLES": str(options["warmup"]),
        "RINGAR_AUTOTUNE_STEPS_PER_SAMPLE": str(options["steps"]),
        "RINGAR_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": str(options["samples"]),
        "RINGAR_AUTOTUNE_SETTINGS": options["settings"],
    })  # fmt: skip
    model, weights = train(options, math.ceil(search_steps(options) / EPOCH))
    chosen, pairs = tuned.of(model), list(zip(weights, plain, strict=True))
    report = {
        "settings": str(chosen),
        "found": os.path.exists(options["settings"]),  # the search has ended
        "other_bits": sum(int(np.count_nonzero(a != b)) for a, b in pairs),
        "difference": max(float(np.max(np.abs(a - b))) for a, b in pairs),
        "differ": weights_differ(model),
        **in_turn(model, chosen, options),
    }
    write_report(options, ringar.rank(), report)
    ringar.shutdown()


if __name__ == "__main__":
    main()
