"""The faults of a rank of a chaos job, by the plan in its first argument.

A rank looks for its own faults before each step. It is known by its slot, which survives a change
of the ranks.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

PLAN: dict[str, Any] = json.loads(sys.argv[1])
SLOT = int(os.environ.get("RINGAR_RANK", "0"))
FIRST = not os.path.exists(PLAN["once"] + str(SLOT))  # of the processes in this slot


def happen(step: int | str) -> str:
    """Let the faults of this rank at `step` happen; return what it has to do wrong, if anything."""
    deviation = ""
    for fault in PLAN["faults"] if FIRST else ():
        if (fault["slot"], fault["step"]) == (SLOT, step):
            with open(PLAN["once"] + str(SLOT), "w"):
                pass
            if "delay" in fault:  # while this rank starts, or shuts down
                threading.Thread(target=follow, args=[fault], daemon=True).start()
            else:
                deviation = suffer(fault["what"], fault.get("seconds", 0)) or deviation
    return deviation


def suffer(action: str, seconds: float) -> str:
    """Let a fault happen to this process, or return its name if it is a call to be done wrong."""
    whose, _, name = action.rpartition(" ")
    if action in ("link", "discovery"):
        Path(PLAN["once"] + action).touch()
        time.sleep(0.1)  # until the relay has seen it
    elif name.startswith("SIG"):
        send(name, whose, seconds)
    elif action.startswith("exit"):
        sys.exit(int(action.split()[1]))
    elif action == "end":
        os._exit(6)
    elif action == "raise":
        raise ValueError("a fault of this rank alone")
    elif action == "sleep":
        time.sleep(seconds)
    elif action == "leave":
        import ringar

        ringar.shutdown()
        time.sleep(seconds)
        sys.exit(4)
    elif action == "descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    else:
        return action
    return ""


def send(name: str, whose: str, seconds: float) -> None:
    """Send a signal to this process, its launcher or a worker of its data, if there is one."""
    pid = os.getpid()
    if whose == "launcher":
        pid = launcher()
    elif whose == "worker":
        workers = multiprocessing.active_children()
        if not workers:
            return
        pid = random.choice(workers).pid or 0
    if name == "SIGSTOP" and seconds:  # another process lets it continue
        go_on = f"sleep {seconds}; kill -CONT {pid}"
        subprocess.Popen(["sh", "-c", go_on], stdout=subprocess.DEVNULL)
    os.kill(pid, signal.Signals[name])


def launcher() -> int:
    """Return the process id of `ringarrun`; hosts of a test see each other's processes."""
    from tests.launchers.helpers import MARK
    from tests.plugin.jobs import command_line, processes

    words = {pid: command_line(pid).split() for pid in processes(os.environ[MARK])}
    return next(pid for pid in words if words[pid][2:4] == ["-m", "ringar.launchers"])


def await_other_faults() -> None:
    """Start a thread for each fault of this rank that follows one of another rank."""
    for fault in PLAN["faults"] if FIRST else ():
        if (fault["slot"], fault["step"]) == (SLOT, "after"):
            threading.Thread(target=follow, args=[fault], daemon=True).start()


def follow(fault: dict[str, Any]) -> None:
    """Wait for a fault of another rank, if it is to follow one; a little later, let it happen."""
    while "of" in fault and not os.path.exists(PLAN["once"] + str(fault["of"])):
        time.sleep(0.01)
    time.sleep(fault["delay"])
    Path(PLAN["once"] + str(SLOT)).touch()
    suffer(fault["what"], 0)
