"""Rank 1 dies in a collective, and no other process can take its slot: `too_few.py FOLDER`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

is_slot_1 = os.environ["RINGAR_RANK"] == "1"
died = Path(sys.argv[1], "died")
if is_slot_1 and died.exists():
    sys.exit(5)

import numpy as np  # noqa: E402 (the others do not wait for it)

import ringar  # noqa: E402


@ringar.elastic.run
def train(state: ringar.elastic.ObjectState) -> None:
    """Reduce for ever."""
    while True:
        ringar.allreduce(np.ones(1), name="step")
        if is_slot_1:
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


ringar.init(deadline=30)
train(ringar.elastic.ObjectState())
