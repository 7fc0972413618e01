"""A pipeline of three modules that trains until one of its ranks is killed."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import keras

import ringar
from tests.faults.job import attempt
from tests.parallel.pipeline import nets

VICTIM, SCHEDULE = int(sys.argv[2]), sys.argv[3]


class Kill(keras.callbacks.Callback):
    """Ends the victim in the middle of an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 7 and ringar.rank() == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)


signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that the others get to say what they saw
ringar.init(deadline=30, stall_warning=10)
model = ringar.parallel.Pipelined(nets.residual(), schedule=SCHEDULE, cuts=nets.CUTS[3])
model.compile("sgd", nets.loss())
data = nets.dataset(nets.batches(4)).repeat(10)
attempt("fit", lambda: model.fit(data, epochs=3, callbacks=[Kill()], verbose=0))
