"""Trains a model on one rank: `python -m benchmarks.training.worker OPTIONS`.

Trains with `fit`, plainly or with ringar, and reports the seconds of every epoch after the first,
from its first step to the end of its callbacks. The begin and the end of `fit` do not count: Keras
sleeps some 0.4 s while it tears down its input pipeline, with ringar and without, which would hide
what a step costs. With ringar the weights of all ranks are compared at the end. Plain processes
report the seconds of every step, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.worker import read_options, weights_differ, write_report


def wait_for_others(folder: str, rank: int, ranks: int, turn: int) -> None:
    """Waits for the other processes by means of files, since plain ones know no other way.

    Plain processes share the machine only while all of them train.
    """
    Path(folder, f"{rank}.turn-{turn}").touch()
    while len(list(Path(folder).glob(f"*.turn-{turn}"))) < ranks:
        time.sleep(1e-3)


def main() -> None:
    options = read_options()
    with_ringar = options["ringar"]
    import keras
    import tensorflow as tf

    from benchmarks.training.models import MODELS, data_for

    if with_ringar:
        import ringar

        ringar.init(intra_op_threads=1, inter_op_threads=2)
        rank, ranks = ringar.rank(), ringar.size()
    else:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    keras.utils.set_random_seed(1 + rank)
    build, batch = MODELS[options["model"]]
    model = build()
    optimizer: Any = keras.optimizers.SGD(1e-3)

    class Stopwatch(keras.callbacks.Callback):
        """Seconds of an epoch that all ranks begin together, and of its steps if it is watched."""

        turn = 0

        def watch(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
            """Returns a train function that notes when it begins.

            A method that Keras calls after each batch would make it read the metrics every time.
            """

            def watched(iterator: Any) -> Any:
                self._moments.append(time.perf_counter())
                return step(iterator)

            return watched

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            wait_for_others(options["folder"], rank, ranks, self.turn)
            self.turn += 1
            self._moments: list[float] = []
            self._start = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seconds = time.perf_counter() - self._start

        def steps(self) -> list[float]:
            """Returns the seconds from each watched step's begin to that of the next one."""
            marks = [self._start, *self._moments[1:], self._start + self.seconds]
            return [float(seconds) for seconds in np.diff(marks)]

    stopwatch = Stopwatch()
    callbacks: list[Any] = [stopwatch]  # the last: the others' work counts
    if with_ringar:
        optimizer = ringar.DistributedOptimizer(optimizer)
        callbacks = [ringar.callbacks.Distributed(), stopwatch]
    model.compile(optimizer=optimizer, loss="mse")
    if not with_ringar:
        model.make_train_function()
        model.train_function = stopwatch.watch(model.train_function)
    inputs, targets = data_for(model, batch * options["steps"])

    def epoch() -> float:
        model.fit(inputs, targets, batch_size=batch, epochs=1, verbose=0, callbacks=callbacks,
                  shuffle=False)  # fmt: skip
        return float(stopwatch.seconds)

    epoch()
    times, steps = [], []
    for _ in range(options["epochs"]):
        times.append(epoch())
        steps.append(stopwatch.steps())
    errors = weights_differ(model) if with_ringar else 0
    errors += sum(int(np.count_nonzero(~np.isfinite(w))) for w in model.get_weights())
    write_report(options, rank, {"seconds": times, "steps": steps, "wrong": errors})


if __name__ == "__main__":
    main()
