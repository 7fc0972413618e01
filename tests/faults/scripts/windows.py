"""Rank 1 ends, or does not come, while ranks 0 and 2 write to its part of a window."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

import numpy as np

import ringar
from tests.faults.job import RANK, attempt, say, wait_for

HOW = sys.argv[2]
LENGTH = 1 << 20


def for_ever(function: Callable[[], object]) -> None:
    while True:
        function()


ringar.init(deadline=1.5 if HOW == "deadline" else 30.0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if HOW == "deadline":
    if RANK == 1:
        wait_for("rank 0 knows")
    else:
        attempt("open", lambda: ringar.Window(LENGTH, name="shared"))
        say("rank 0 knows")
    sys.exit()

window = ringar.Window(LENGTH, name="shared")
ones = np.ones(LENGTH, np.float32)
if RANK == 1:
    threading.Thread(target=lambda: for_ever(lambda: window.put(2, ones)), daemon=True).start()
    wait_for("rank 0 writes")
    wait_for("rank 2 writes")
    if HOW == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    ringar.shutdown()
    wait_for("rank 0 knows")
    wait_for("rank 2 knows")
    os._exit(0)  # the thread still tries
window.accumulate(1, ones)
say(f"rank {RANK} writes")
attempt("loop", lambda: for_ever(lambda: window.accumulate(1, ones)))
say(f"rank {RANK} knows")
wait_for(f"rank {2 - RANK} knows")
attempt("others", lambda: window.put(0, ones))
say(f"rank {RANK} has put")
wait_for(f"rank {2 - RANK} has put")  # before rank 0 ends
attempt("close", window.close)
