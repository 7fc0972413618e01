"""A net that is cut, in planes or along its edges, trains until one of its ranks is killed."""

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
from tests.research.sparse import nets as edges

VICTIM, KIND = int(sys.argv[2]), sys.argv[3]


class Kill(keras.callbacks.Callback):
    """Ends the victim in the middle of an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 7 and ringar.rank() == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)


def training(grid: ringar.parallel.Grid) -> Callable[[], object]:
    """Return a function that trains a net of the kind."""
    model: keras.Model
    if KIND == "sparse":
        model = edges.compiled_net(grid, partition="random")
        x, y = edges.examples()
    else:
        model = planes.seeded(planes.cut_net)
        model.compile(ringar.DistributedOptimizer("sgd", grid=grid), planes.LOSS)
        x, y = planes.images(120), planes.labels(120)
    return lambda: model.fit(x, y, batch_size=4, epochs=3, callbacks=[Kill()], verbose=0)


signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that the others get to say what they saw
ringar.init(deadline=30, stall_warning=10)
attempt("fit", training(ringar.parallel.Grid(model=ringar.size())))
