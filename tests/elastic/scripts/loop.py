"""A custom training loop that counts every row once, whatever happens to the ranks.

In each world of four ranks one of them suffers a fault: the worlds have 4, 3, 4, 3, ... ranks.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

import ringar

ROWS, FULL = 101, 4
SLOT = int(os.environ["RINGAR_RANK"])
#: By the number of worlds so far: the slot, and what happens to its process.
FAULTS = {1: (2, "kill"), 3: (1, "raise"), 5: (3, "leave"), 7: (0, "segfault")}

data = ringar.elastic.Dataset(np.arange(ROWS), batch_size=3, shuffle=True, seed=1)


def suffer(fault: str) -> None:
    """Let the fault happen to this process."""
    if fault == "raise":
        raise ValueError("of this rank alone")
    signals = {"kill": signal.SIGKILL, "leave": signal.SIGTERM, "segfault": signal.SIGSEGV}
    os.kill(os.getpid(), signals[fault])


@ringar.elastic.run
def train(state: ringar.elastic.ObjectState) -> None:
    """Add up the rows until all faults have happened."""
    state.sizes = [*state.sizes, ringar.size()]
    steps = 0
    while len(state.sizes) <= max(FAULTS) + 1 or state.epoch < state.last:
        if len(state.sizes) <= max(FAULTS) + 1:
            state.last = state.epoch + 2
        for done, rows in data.batches(state.epoch, state.done):
            state.done = done
            state.total += int(ringar.allreduce(rows.sum(), op=ringar.Sum, name="rows"))
            steps += 1
            if steps % 2 == 0:
                state.commit()
            slot, fault = FAULTS.get(len(state.sizes), (-1, ""))
            if (slot, ringar.size(), steps) == (SLOT, FULL, 5):
                suffer(fault)
            time.sleep(0.02)
        state.epoch, state.done = state.epoch + 1, 0


ringar.init(deadline=30)
state = ringar.elastic.ObjectState(epoch=0, done=0, total=0, sizes=[], last=0)
train(state)
expected = state.epoch * ROWS * (ROWS - 1) // 2
print(f"{ringar.rank()} {ringar.size()} {state.sizes} {state.total - expected}", flush=True)
sys.exit(0)
