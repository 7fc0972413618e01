"""A training loop in a job of MPI: three ranks are lost in turn, and each row counts once."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

import ringar

ROWS = 101
FIRST_RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
#: By the number of worlds so far: who is lost, and how.
FAULTS = {1: (2, "kill"), 2: (0, "raise"), 3: (3, "leave")}

data = ringar.elastic.Dataset(np.arange(ROWS), batch_size=3, shuffle=True, seed=1)


@ringar.elastic.run
def train(state: ringar.elastic.ObjectState) -> None:
    """Add up the rows until all faults have happened."""
    state.sizes = [*state.sizes, ringar.size()]
    steps = 0
    while state.epoch < 2 + len(state.sizes):
        for done, rows in data.batches(state.epoch, state.done):
            state.done = done
            state.total += int(ringar.allreduce(rows.sum(), op=ringar.Sum, name="rows"))
            steps += 1
            if steps % 2 == 0:
                state.commit()
            who, fault = FAULTS.get(len(state.sizes), (-1, ""))
            if (who, 5) == (FIRST_RANK, steps):
                if fault == "raise":
                    raise ValueError("of this rank alone")
                os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGTERM)
        state.epoch, state.done = state.epoch + 1, 0


ringar.init(deadline=30)
state = ringar.elastic.ObjectState(epoch=0, done=0, total=0, sizes=[])
train(state)
expected = state.epoch * ROWS * (ROWS - 1) // 2
print(f"{FIRST_RANK}: {ringar.rank()} {state.sizes} {state.total - expected}", flush=True)
sys.exit(0)
