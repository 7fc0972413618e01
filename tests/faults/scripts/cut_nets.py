"""A net that is cut in planes, edges or modules trains until one of its ranks is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import keras

import ringar
from tests.faults.job import attempt
from tests.parallel.partitioned import nets as planes
from tests.parallel.pipeline import nets as modules
from tests.research.sparse import nets as edges

VICTIM, KIND = int(sys.argv[2]), sys.argv[3]


class Kill(keras.callbacks.Callback):
    """Ends the victim in the middle of an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 7 and ringar.rank() == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)


def training(kind: str) -> Callable[[], object]:
    """Return a function that trains a net of the kind, or a pipeline on that schedule."""
    model: keras.Model
    options: dict[str, Any] = {"epochs": 3, "callbacks": [Kill()], "verbose": 0}
    if kind not in ("partitioned", "sparse"):
        model = ringar.parallel.Pipelined(modules.residual(), schedule=kind, cuts=modules.CUTS[3])
        model.compile("sgd", modules.loss())
        data = modules.dataset(modules.batches(4)).repeat(10)
        return lambda: model.fit(data, **options)
    grid = ringar.parallel.Grid(model=ringar.size())
    if kind == "sparse":
        model = edges.compiled_net(grid, partition="random")
        x, y = edges.examples()
    else:
        model = planes.seeded(planes.cut_net)
        model.compile(ringar.DistributedOptimizer("sgd", grid=grid), planes.LOSS)
        x, y = planes.images(120), planes.labels(120)
    return lambda: model.fit(x, y, batch_size=4, **options)


signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that the others get to say what they saw
ringar.init(deadline=30, stall_warning=10)
attempt("fit", training(KIND))
