"""A training that ranks of elastic jobs call; `cloudpickle` carries it to them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

import ringar


def member() -> int:
    """Return the process of a cluster's manager below which this rank runs."""
    pid = os.getppid()
    while "ringar.launchers" in Path(f"/proc/{pid}/cmdline").read_text():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pid = int(fields[1])
    return pid


def add_up(
    folder: str, last_size: int, marker: str = "killed", with_member: bool = False
) -> tuple[int, list[int], int]:
    """Add up steps until a rank was lost and the world has `last_size` ranks.

    Args:
        folder: where a file says that a rank has been killed: rank 1, in the fifth step of a world
            of its size.
        last_size: the number of ranks to end with.
        marker: the name of the file.
        with_member: kill what the cluster's manager has started, and with it the rank.

    Returns:
        The rank, the sizes of all worlds, and how much the sum is wrong.
    """
    ringar.init(deadline=30)
    killed = Path(folder, marker)

    @ringar.elastic.run
    def train(state: ringar.elastic.ObjectState) -> None:
        state.sizes = [*state.sizes, ringar.size()]
        done = 0
        while len(state.sizes) == 1 or ringar.size() != last_size or done < 4:
            state.total += float(ringar.allreduce(np.float32(1.0), name="step"))
            state.steps += 1
            done += 1
            state.commit()
            if done == 5 and ringar.rank() == 1 and not killed.exists():
                killed.touch()
                os.kill(member() if with_member else os.getpid(), signal.SIGKILL)
            time.sleep(0.02)

    state = ringar.elastic.ObjectState(steps=0, total=0.0, sizes=[])
    train(state)
    return ringar.rank(), state.sizes, round(state.total - state.steps)
