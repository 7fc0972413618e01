"""Trains a small model, and notes when each step has ended: `worker.py OPTIONS`, as JSON.

Options: `folder` for the notes, `kills`, `steps` in a world before the next kill or the end,
`every` for the commits, 0 for a training without the callback of elastic jobs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import ringar
from ringar.collectives.digest import digest

ROWS, FEATURES, UNITS = 1 << 16, 64, 128


class Notes(keras.callbacks.Callback):
    """Note the end of each step; kill rank 1 in each world of all ranks; stop in the last one."""

    def __init__(self, folder: Path, kills: int, steps: int) -> None:
        super().__init__()
        self.file = os.open(folder / f"{os.getpid()}.steps", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self.kills, self.steps = folder / "kills", steps
        self.left = kills
        self.full = int(os.environ["RINGAR_SIZE"])
        self.size = self.done = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Note the step, and act if it is time."""
        now, size = time.monotonic(), ringar.size()
        os.write(self.file, b"%.6f %d\n" % (now, size))
        self.done = self.done + 1 if size == self.size else 1
        self.size = size
        if self.done < self.steps or size < self.full:
            return
        killed = self.kills.read_text().count("\n") if self.kills.exists() else 0
        if killed == self.left:
            self.model.stop_training = True
        elif ringar.rank() == 1 and self.done == self.steps:
            with self.kills.open("a") as file:
                file.write(f"{time.monotonic():.6f}\n")
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    options = json.loads(sys.argv[1])
    folder = Path(options["folder"])
    ringar.init(deadline=60)
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(UNITS, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(1)])
    model.compile(ringar.DistributedOptimizer(keras.optimizers.Adam(1e-3)), "mse")
    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    data = ringar.elastic.Dataset((x, x[:, :1]), batch_size=32, shuffle=True)
    callbacks: list[keras.callbacks.Callback] = [ringar.callbacks.Distributed()]
    if options["every"]:
        callbacks.append(ringar.callbacks.Elastic(every=options["every"]))
    callbacks.append(Notes(folder, options["kills"], options["steps"]))
    model.fit(data, epochs=1000, verbose=0, callbacks=callbacks)
    end = {"weights": digest(model.get_weights()), "size": ringar.size()}
    (folder / f"{os.getpid()}.json").write_text(json.dumps(end))


if __name__ == "__main__":
    main()
