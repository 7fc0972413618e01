"""Communicate in a number of worlds, one after the other: `wait_for_others.py WORLDS`."""

from __future__ import annotations

import sys
import time

import numpy as np

import ringar

WORLDS = int(sys.argv[1])


@ringar.elastic.run
def train(state: ringar.elastic.ObjectState) -> None:
    """Add up ones, and commit each sum."""
    hosts = ringar.cross_size()
    print(f"{ringar.size()} ranks on {hosts} host{'s' if hosts > 1 else ''}", flush=True)
    state.worlds += 1
    for step in range(1 << 30):
        total = ringar.allreduce(np.ones(1), op=ringar.Sum, name="ones")
        assert total == ringar.size()
        state.commit()
        if state.worlds >= WORLDS and step == 9:
            return
        time.sleep(0.02)


ringar.init(deadline=30)
train(ringar.elastic.ObjectState(worlds=0))
