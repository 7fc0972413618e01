"""Reduces again and again; what rank 1 does after a second is the first argument."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

import ringar

ringar.init()
print(f"ready: rank {ringar.rank()} of {ringar.size()}, host {ringar.cross_rank()}", flush=True)
print(*(os.environ.get(f"HOROVOD_{name}") for name in ("RANK", "SIZE", "HOSTNAME")), flush=True)
start = time.monotonic()
while sys.argv[1] != "end" and time.monotonic() - start < 60:
    if sys.argv[1] == "die" and ringar.rank() == 1 and time.monotonic() - start > 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ringar.allreduce(np.ones(4, np.float32), op=ringar.Sum)
    time.sleep(0.01)
