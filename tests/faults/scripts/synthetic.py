"""Two decoupled modules, of which the upper one is stopped in the middle of a fit."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any

import keras

import ringar
from tests.parallel.pipeline import synthetic_nets as nets

SECONDS, BEGIN = 2.0, 10


class Watch(keras.callbacks.Callback):
    """Stops rank 1 after some steps, and notes when each step of a rank was done."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []
        self.stop = (0.0, 0.0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ends.append(time.monotonic())
        if batch == BEGIN and ringar.rank() == 1:
            subprocess.Popen(["sh", "-c", f"sleep {SECONDS}; kill -CONT {os.getpid()}"])
            begin = time.monotonic()
            os.kill(os.getpid(), signal.SIGSTOP)
            self.stop = (begin, time.monotonic())


def steps_meanwhile(ahead: int, steps: int) -> tuple[int, float]:
    """Return how many steps rank 0 did while rank 1 was stopped, and for how long that was."""
    model = ringar.parallel.Pipelined(
        nets.net(), schedule="synthetic", cuts=nets.cuts(2), ahead=ahead, conditioned=True
    )
    model.compile("sgd", nets.loss(), run_eagerly=True)
    watch = Watch()
    model.fit(nets.dataset(nets.batches(steps)), callbacks=[watch], verbose=0)
    model.drain()
    assert model.in_flight == 0
    ranks = ringar.allgather_object((watch.ends, watch.stop))
    begin, end = ranks[1][1]
    return sum(begin < moment < end for moment in ranks[0][0]), end - begin


ringar.init()
unbound, bound = steps_meanwhile(300, 300), steps_meanwhile(4, 40)
if ringar.rank() == 0:
    print("free {} {}, held {} {}".format(*unbound, *bound))
