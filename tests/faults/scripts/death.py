"""Rank 1 ends, in a way that the arguments say, while all ranks are in a loop of allreduces.

The others go on to their end with the exception that they got, as programs do that catch nothing.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time

# Registered before ringar's own handler, and so run after it: rank 1 has left the job, and takes
# longer to leave Python than the others take to notice.
ODD = os.environ["RINGAR_RANK"] == "1"
if ODD:
    atexit.register(time.sleep, 0.5)

import ringar  # noqa: E402
from tests.faults.job import attempt  # noqa: E402
from tests.faults.scripts.loops import FOREVER, LOOPS, Loop, signal_myself  # noqa: E402

_, _, HOW, KIND = sys.argv


def end_here(loop: Loop) -> None:
    if HOW in ("SIGKILL", "SIGSTOP"):
        signal_myself(signal.Signals[HOW], 0.3)
        loop(FOREVER)
    loop(20)
    if HOW == "throw":
        raise ValueError("rank 1 has a bug")
    if HOW == "exit":
        os._exit(7)
    assert HOW == "return"


ringar.init(deadline=30)
long_loop = LOOPS[KIND]()
long_loop(3)
if HOW == "SIGSTOP":
    ringar.shutdown()
    ringar.init(deadline=1.5)
if ODD:
    end_here(long_loop)
    sys.exit()
# The launcher ends the job at once: without this the others might not come to write down what
# they saw.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
errors: list[Exception] = []


def loop_until_it_fails() -> None:
    try:
        long_loop(FOREVER)
    except Exception as error:
        errors.append(error)
        raise


attempt("loop", loop_until_it_fails)
raise errors[0]
