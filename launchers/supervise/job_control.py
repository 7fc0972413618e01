"""Stop the processes of a job with the launcher (Ctrl-Z), and let them go on with it (`fg`).

Ranks are in sessions of their own, where the terminal does not reach them, and where the kernel
ignores a SIGTSTP without a handler. So they get SIGSTOP. Time stands still for the launcher
meanwhile (clock.py), and for the deadlines of ranks (tf_ops/engine/wait.h).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

from ringar.launchers.supervise import clock, janitor, recipients

_STOP = 5.0  # seconds for a launcher to stop its ranks, and itself
_TICK = 0.01
_ROUNDS = 10  # to find the processes that others have started meanwhile


def stop(job: str, leaders: Iterable[int]) -> None:
    """Stop all processes of a job.

    Args:
        job: its name.
        leaders: the processes of its ranks.
    """
    stopped_pids: set[int] = set()
    for _ in range(_ROUNDS):
        pids = _processes(job, leaders) - stopped_pids
        if not pids:
            return
        janitor.signal_processes(pids, signal.SIGSTOP)
        stopped_pids |= pids


def go_on(job: str, leaders: Iterable[int]) -> None:
    """Let all processes of a job go on; the arguments are those of `stop`."""
    janitor.signal_processes(_processes(job, leaders), signal.SIGCONT)


def stop_this_process() -> None:
    """Stop this process; it returns when somebody lets it go on."""
    # Not SIGTSTP, which the kernel ignores in sessions of their own.
    os.kill(os.getpid(), signal.SIGSTOP)


def nobody_continues() -> bool:
    """Return whether Ctrl-Z has come from a terminal of which no shell would let this one go on.

    The kernel ignores it then in programs without a handler: in a container, or under `ssh -t`.
    """
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False  # a process has sent it, such as the caller of `ringar.run`
    group, session = os.getpgrp(), os.getsid(0)
    parents = recipients.parents()
    members = [pid for pid in parents if _id(os.getpgid, pid) == group]
    outside = (parents[pid] for pid in members if parents[pid] > 0)
    return not any(
        _id(os.getsid, pid) == session and _id(os.getpgid, pid) != group for pid in outside
    )


@contextlib.contextmanager
def shared_with(launcher: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop a launcher in a session of its own together with this process, in this context."""

    def on_stop(number: int, frame: FrameType | None) -> None:
        if nobody_continues():
            return
        clock.stop()
        launcher.send_signal(signal.SIGTSTP)
        _wait_for_stop(launcher.pid)  # it would miss a SIGCONT that comes before
        stop_this_process()
        launcher.send_signal(signal.SIGCONT)
        clock.go_on()

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTSTP, on_stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def _wait_for_stop(pid: int) -> None:
    """Wait until a child has stopped or ended; one that has just begun may ignore the signal."""
    end = time.monotonic() + _STOP
    how = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    while os.waitid(os.P_PID, pid, how) is None and time.monotonic() < end:
        time.sleep(_TICK)


def _processes(job: str, leaders: Iterable[int]) -> set[int]:
    """Return the processes of a job, with those of jobs that its ranks have started."""
    parents = recipients.parents()
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    pids = janitor.members(job) | (set(leaders) & set(parents))
    queue = list(pids)
    while queue:
        new = set(children.get(queue.pop(), ())) - pids
        pids |= new
        queue += new
    return pids


def _id(ask: Callable[[int], int], pid: int) -> int:
    try:
        return ask(pid)
    except OSError:  # it has ended
        return -1
