"""What runs on every rank of a training measurement: ``python -m benchmarks.training.worker options``.

Trains a model with ``fit``, plainly or with ringar, and writes the seconds of every epoch after the
first, from its first step to the end of its callbacks. What ``fit`` does before and after is left
out: tearing down its input pipeline, Keras sleeps for some 0.4 s, with ringar and without, which
would hide what a step costs. With ringar the weights of all ranks are compared at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.worker import weights_differ


def meet(folder: str, rank: int, ranks: int, turn: int) -> None:
    """Waits for the other processes, which know of each other by files alone.

    Plain processes are side by side only while all of them train: one that starts early has the
    machine to itself.
    """
    Path(folder, f"{rank}.turn-{turn}").touch()
    while len(list(Path(folder).glob(f"*.turn-{turn}"))) < ranks:
        time.sleep(1e-3)


def main() -> None:
    options = json.loads(sys.argv[1])
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
        """Seconds of an epoch that all ranks begin together."""

        turn = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            meet(options["folder"], rank, ranks, self.turn)
            self.turn += 1
            self._start = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seconds = time.perf_counter() - self._start

    stopwatch = Stopwatch()
    callbacks: list[Any] = [stopwatch]  # the last: the others' work counts
    if with_ringar:
        optimizer = ringar.DistributedOptimizer(optimizer)
        callbacks = [ringar.callbacks.Distributed(), stopwatch]
    model.compile(optimizer=optimizer, loss="mse")
    inputs, targets = data_for(model, batch * options["steps"])

    def epoch() -> float:
        model.fit(inputs, targets, batch_size=batch, epochs=1, verbose=0, callbacks=callbacks,
                  shuffle=False)  # fmt: skip
        return float(stopwatch.seconds)

    epoch()
    times = [epoch() for _ in range(options["epochs"])]
    wrong = weights_differ(model) if with_ringar else 0
    wrong += sum(int(np.count_nonzero(~np.isfinite(w))) for w in model.get_weights())
    report = {"rank": rank, "seconds": times, "batch": batch, "wrong": wrong}
    Path(options["folder"], f"{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
