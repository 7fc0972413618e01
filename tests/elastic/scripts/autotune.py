"""`fit` that is tuned while a rank is killed and another one joins: the search begins anew.

In the first world the search has ended when a rank is killed. The job ends when three ranks, of
which one has joined, have found settings again.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from typing import Any

import keras
import numpy as np

import ringar
from ringar.keras import tuned

FULL = 3


class Faults(keras.callbacks.Callback):
    """Kill rank 1 once the search has ended, and stop when that of the third world has."""

    has_found = False  # in this world

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.has_found = False

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        time.sleep(0.01)
        distributed = next(c for c in callbacks if isinstance(c, ringar.callbacks.Distributed))
        self.has_found = ringar.size() > 1 and distributed.tuner is None
        is_first = self.has_found and not os.path.exists(os.environ["KILLED"])
        if is_first and ringar.rank() == 1:
            with open(os.environ["KILLED"], "x"):
                os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.has_found and os.path.exists(os.environ["KILLED"]) and ringar.size() == FULL:
            self.model.stop_training = True


ringar.init(deadline=30)
keras.utils.set_random_seed(ringar.rank())
layers = [keras.layers.Dense(300, activation="tanh") for _ in range(3)]
model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])
model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
x = np.random.default_rng(0).normal(size=(240, 6)).astype(np.float32)
callbacks = [ringar.callbacks.Distributed(), ringar.callbacks.Elastic(every=4), Faults()]
data = ringar.elastic.Dataset((x, x[:, :1]), batch_size=2, shuffle=True)
model.fit(data, epochs=1000, verbose=0, callbacks=callbacks)
weights = b"".join(np.asarray(weight).tobytes() for weight in model.get_weights())
print(f"{ringar.size()} {tuned.of(model)} {hashlib.sha256(weights).hexdigest()}", flush=True)
