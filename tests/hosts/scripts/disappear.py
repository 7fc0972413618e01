"""All ranks are in a loop of allreduces when a host disappears; the others write down their error.

They go on to their end with the exception that they got, as programs do that catch nothing.
"""

from __future__ import annotations

import signal
import sys
import time

import numpy as np

import ringar
from tests.faults.job import RANK, record, say

DEADLINE = float(sys.argv[2])


def loop() -> None:
    array = np.ones(250_000, np.float32)
    for turn in range(10**9):
        start = time.monotonic()
        try:
            ringar.allreduce(array, name="loop")
        except Exception as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            record("loop", kinds=kinds, message=str(error), seconds=time.monotonic() - start)
            raise
        if turn == 2:
            say(f"rank {RANK} is in its loop")


# mpirun ends the job when it hears of it: the ranks here should come to write down what they saw.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ringar.init(deadline=DEADLINE, stall_warning=1)
loop()
