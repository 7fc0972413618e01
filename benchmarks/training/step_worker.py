"""Trains a model plainly and with ringar: `python -m benchmarks.training.step_worker OPTIONS`.

The two take turns in the same processes. A turn lasts about a second: a machine that changes its
speed from minute to minute changes that of both. All ranks begin a turn together. Plain models do
not communicate within it. Each rank reports the seconds of every step of every turn. In the end the
weights of all ranks are compared.

With the option "way" = "fit" Keras trains, with "loop" a loop with a gradient tape whose step XLA
compiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.worker import read_options, weights_differ, write_report

Turn = Callable[[], list[float]]
"""Trains for a turn, and returns the seconds of its steps."""


def by_fit(model: Any, data: tuple[Any, Any], batch: int, is_plain: bool) -> Turn:
    """Returns a turn that is an epoch of `fit`."""
    import keras

    import ringar

    moments: list[float] = []

    class Together(keras.callbacks.Callback):
        """Begins an epoch on all ranks at once."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            ringar.barrier()
            moments.clear()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            moments.append(time.perf_counter())

    callbacks: list[Any] = [Together()]
    optimizer: Any = keras.optimizers.SGD(1e-3)
    if not is_plain:
        optimizer = ringar.DistributedOptimizer(optimizer)
        callbacks.insert(0, ringar.callbacks.Distributed())
    model.compile(optimizer=optimizer, loss="mse")
    model.make_train_function()
    step = model.train_function

    def watched(iterator: Any) -> Any:
        # A callback's method of each batch would make Keras read the metrics each time.
        moments.append(time.perf_counter())
        return step(iterator)

    model.train_function = watched

    def turn() -> list[float]:
        model.fit(*data, batch_size=batch, verbose=0, callbacks=callbacks, shuffle=False)
        return np.diff(moments).tolist()

    return turn


def by_loop(model: Any, data: tuple[Any, Any], batch: int, is_plain: bool) -> Turn:
    """Returns a turn that takes the same steps, compiled by XLA, with a tape."""
    import keras
    import tensorflow as tf

    import ringar

    optimizer: Any = keras.optimizers.SGD(1e-3)
    if not is_plain:
        optimizer = ringar.DistributedOptimizer(optimizer)
        ringar.broadcast_variables(model.variables, root_rank=0)
    optimizer.build(model.trainable_variables)
    batches = list(tf.data.Dataset.from_tensor_slices(data).batch(batch, drop_remainder=True))
    loss_of = keras.losses.MeanSquaredError()

    @tf.function(jit_compile=True)
    def step(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(inputs, training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    def turn() -> list[float]:
        ringar.barrier()
        moments = [time.perf_counter()]
        for inputs, targets in batches:
            step(inputs, targets).numpy()
            moments.append(time.perf_counter())
        return np.diff(moments).tolist()

    return turn


WAYS = {"fit": by_fit, "loop": by_loop}


def main() -> None:
    options = read_options()
    import keras

    import ringar
    from benchmarks.training.models import MODELS, data_for

    ringar.init(intra_op_threads=1, inter_op_threads=2)
    keras.utils.set_random_seed(1 + ringar.rank())
    build, batch = MODELS[options["model"]]
    models = {"plain": build(), "ringar": build()}
    data = data_for(models["plain"], batch * options["steps"], ringar.rank())
    turns = {
        name: WAYS[options["way"]](model, data, batch, name == "plain")
        for name, model in models.items()
    }
    for turn in turns.values():
        turn()  # compiles
    steps: dict[str, list[list[float]]] = {name: [] for name in turns}
    for number in range(options["turns"]):
        for name in list(turns)[:: -1 if number % 2 else 1]:
            steps[name].append(turns[name]())
    weights = [weight for model in models.values() for weight in model.get_weights()]
    errors = sum(int(np.count_nonzero(~np.isfinite(weight))) for weight in weights)
    errors += weights_differ(models["ringar"])
    write_report(options, ringar.rank(), {**steps, "wrong": errors})


if __name__ == "__main__":
    main()
