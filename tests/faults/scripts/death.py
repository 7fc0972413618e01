"""Rank 1 ends, in a way that the arguments say, while all ranks are in a loop of allreduces.

The others go on to their end with the exception that they got, as programs do that catch nothing.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from pathlib import Path

RANK = int(os.environ["RINGAR_RANK"])
ODD = RANK == 1
_, FOLDER, HOW, KIND = sys.argv
(Path(FOLDER) / f"pid of {RANK}").write_text(str(os.getpid()))


def outlast_another_rank() -> None:
    """Waits until a rank has ended, and ends then at once: the launcher waits for one second."""
    pids = [(Path(FOLDER) / f"pid of {r}").read_text() for r in (0, 2)]
    give_up = time.monotonic() + 10
    while time.monotonic() < give_up and all(map(_runs, pids)):
        time.sleep(0.01)
    sys.stderr.flush()
    os._exit(1)


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# Registered before ringar's own handler, and so run after it: rank 1 has left the job, and takes
# longer to leave Python than the others take to notice and to end.
if ODD and HOW == "throw":
    atexit.register(outlast_another_rank)

import ringar  # noqa: E402
from tests.faults.job import attempt  # noqa: E402
from tests.faults.scripts.loops import FOREVER, LOOPS, Loop, signal_myself  # noqa: E402


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
