"""Trains without exchange, by gradients and by local steps, for `benchmarks.asynchronous`.

    python -m benchmarks.asynchronous.local_worker OPTIONS

All ways take turns in one job. In the end the weights of all ranks are compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.harness.worker import read_options, weights_differ, write_report

LEARNING_RATE = 1e-3


class Way:
    """A model with its optimizer, and the training function of `fit`."""

    def __init__(self, build: Callable[[], Any], batch: int, optimizer: Any) -> None:
        import keras
        import tensorflow as tf

        from benchmarks.training.models import data_for

        keras.utils.set_random_seed(1)
        self.model = build()
        self.model.compile(optimizer, "mse")
        self.model.make_train_function()
        data = tf.data.Dataset.from_tensors(data_for(self.model, batch)).cache().repeat()
        self._data = iter(data)
        self.run()  # traces

    def run(self) -> None:
        """Takes a step."""
        self.model.train_function(self._data)

    def measure(self, steps: int) -> tuple[float, float]:
        """Returns the seconds of a step until all ranks have ended, and the bytes sent for it."""
        import ringar

        ringar.barrier()
        ringar.reset_stats()
        start = time.perf_counter()
        for _ in range(steps):
            self.run()
        self.model.optimizer.iterations.numpy()
        ringar.barrier()
        took = time.perf_counter() - start
        volume = sum(traffic.bytes for traffic in ringar.stats().values())
        return took / steps, volume / steps


def main() -> None:
    options = read_options()
    import keras

    import ringar
    from benchmarks.training.models import MODELS

    ringar.init(intra_op_threads=1, inter_op_threads=2)
    build, batch = MODELS[options["model"]]
    period = options["period"]

    def sgd() -> Any:
        return keras.optimizers.SGD(LEARNING_RATE)

    ways = {
        "no exchange": Way(build, batch, sgd()),
        "gradients": Way(build, batch, ringar.DistributedOptimizer(sgd())),
        "local steps": Way(build, batch, ringar.LocalSGD(sgd(), period)),
    }
    for _ in range(period - 1):  # a period has begun with the step that was traced
        ways["local steps"].run()
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(options["rounds"]):
        for name, way in ways.items():
            turns[name].append(way.measure(period))
    errors = sum(weights_differ(ways[name].model) for name in ("gradients", "local steps"))
    write_report(options, ringar.rank(), {"found": turns, "wrong": errors})
    ringar.shutdown()


if __name__ == "__main__":
    main()
