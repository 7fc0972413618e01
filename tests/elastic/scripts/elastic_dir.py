"""A loop whose ranks all die in the first run: `elastic_dir.py FOLDER`.

In the second one another state than that of the commits comes first, whose error all ranks get.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

import ringar

died = Path(sys.argv[1], "died")


@ringar.elastic.run
def train(state: ringar.elastic.ObjectState) -> None:
    """Count to 10, and commit each time; print where it begins."""
    if ringar.rank() == 0:
        print(f"from {state.steps} on {ringar.size()}", flush=True)
    while state.steps < 10:
        ringar.allreduce(np.ones(1), name="step")
        state.steps += 1
        state.commit()
        if state.steps == 5 and not died.exists():
            ringar.barrier()
            if ringar.rank() == 0:
                died.touch()
            ringar.barrier()
            os.kill(os.getpid(), signal.SIGKILL)


ringar.init(deadline=30)
if died.exists():
    try:
        ringar.elastic.ObjectState(others=0).sync()
    except (ringar.errors.MismatchError, ringar.errors.RankError) as error:
        is_mismatch = isinstance(error, ringar.errors.MismatchError)
        print(f"MismatchError {is_mismatch}: {str(error).splitlines()[0]}", flush=True)
train(ringar.elastic.ObjectState(steps=0))
