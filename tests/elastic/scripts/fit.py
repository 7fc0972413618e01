"""`fit` whose final weight sums all rows once per epoch, whatever happens to the ranks.

    fit.py [compiled]

The loss is the sum of the outputs of a linear layer, so that each row moves the weight by its
value, in whole numbers. A backup between two commits changes nothing. In the second epoch a rank is
killed between two commits; the others train on until another one has joined.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import keras
import numpy as np

import ringar

ROWS, FULL, EVERY = 61, 3, 4
traces = 0


class Linear(keras.layers.Dense):
    """Count how often the training step is traced."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        global traces
        traces += bool(training)
        return super().call(inputs)


class Outputs(keras.losses.Loss):
    """The outputs themselves."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return y_pred[:, 0]


class Faults(keras.callbacks.Callback):
    """Kill rank 1 once, and stop an epoch after the worlds had 3, 2 and 3 ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.epoch = epoch
        if self.sizes[-1:] != [ringar.size()]:
            self.sizes.append(ringar.size())

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        time.sleep(0.02)
        is_first = not os.path.exists(os.environ["KILLED"])
        if is_first and self.epoch == 1 and batch == EVERY + 1 and ringar.rank() == 1:
            with open(os.environ["KILLED"], "x"):
                os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if os.path.exists(os.environ["KILLED"]) and ringar.size() == FULL and epoch > 1:
            self.model.stop_training = True


ringar.init(deadline=30)
keras.utils.set_random_seed(ringar.rank())
model = keras.Sequential([keras.Input((1,)), Linear(1, use_bias=False)])
model.compile(
    ringar.DistributedOptimizer(keras.optimizers.SGD(1.0)),
    Outputs(reduction="sum"),
    jit_compile="compiled" in sys.argv,
)
model.layers[0].kernel.assign([[0.0]])
x = np.arange(ROWS, dtype=np.float32)[:, None]
faults = Faults()
best = keras.callbacks.ModelCheckpoint(f"{os.environ['KILLED']}.keras", "loss")
backup = keras.callbacks.BackupAndRestore(f"{os.environ['KILLED']}-backup", save_freq=3)
elastic = ringar.callbacks.Elastic(every=EVERY)
callbacks = [ringar.callbacks.Distributed(), backup, elastic, best, faults]
data = ringar.elastic.Dataset((x, x), batch_size=2, shuffle=True)
history = model.fit(data, epochs=1000, verbose=0, callbacks=callbacks)

epochs = len(history.epoch)
deficit = float(model.layers[0].kernel[0, 0]) + epochs * x.sum()
print(
    f"{ringar.rank()} {ringar.size()} epochs {history.epoch == list(range(epochs))} "
    f"missing {deficit} traces {traces}",
    flush=True,
)
