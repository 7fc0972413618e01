"""A loop that cannot write some of its commits: `full_folder.py FOLDER`."""

from __future__ import annotations

import pickle
import resource
import sys
from pathlib import Path

import numpy as np

import ringar

FOLDER = Path(sys.argv[1])


def limit_files(size: int) -> None:
    """Let files of this process grow to `size` bytes at most."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


@ringar.elastic.run
def train(state: ringar.elastic.ObjectState) -> None:
    """Count to 9; the folder is full at 3, 4 and 5. Print what it holds at 5 and at 6."""
    while state.steps < 9:
        ringar.allreduce(np.ones(1), name="step")
        state.steps += 1
        limit_files(0 if state.steps in (3, 4, 5) else -1)
        state.commit()
        if ringar.rank() == 0 and state.steps in (5, 6):
            names = sorted(path.name for path in FOLDER.iterdir())
            texts = [(FOLDER / name).read_bytes().split(b"\n", 1)[1] for name in names]
            steps = [pickle.loads(text)["steps"] for text in texts]
            print(f"at {state.steps}: {steps}", flush=True)


ringar.init(deadline=30)
train(ringar.elastic.ObjectState(steps=0))
