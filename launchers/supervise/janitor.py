"""The process that cleans up when the launcher cannot, because it was killed.

The launcher starts it as a program of its own, in a session of its own, so that a signal to the
launcher's process group misses it. It reads the process id of each rank from a pipe whose other end
the launcher holds. When the launcher is gone, however it ended, the pipe ends, and the janitor
kills the rest of the job. The kernel ends the ranks with the launcher (PR_SET_PDEATHSIG); the
janitor ends the processes that the ranks have started.

This file runs without the rest of ringar (`python -I -S janitor.py FD JOB`): the standard library
only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable

_TIMEOUT = 10.0  # seconds for which the janitor kills processes that keep appearing
_PAUSE = 0.02


def members(job: str, variable: str = "RINGAR_JOB") -> set[int]:
    """Return the living processes of `job`: all that inherited its id, in `variable`.

    A process that has not been reaped yet has no environment and is not among them.
    """
    mark = f"{variable}={job}".encode()
    pids = set()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = file.read()
        except OSError:  # it ended meanwhile, or belongs to someone else
            continue
        if mark in environment and mark in environment.split(b"\0"):
            pids.add(int(name))
    return pids


def signal_job(job: str, groups: Iterable[int], *signals: int) -> set[int]:
    """Send `signals` to all processes of `job`: those in `groups`, and those that left them.

    Returns:
        The members of the job that were found before they were signalled.
    """
    pids = members(job)
    outside = strays(pids, groups)
    signal_groups(groups, *signals)
    signal_processes(outside, *signals)
    return pids


def strays(pids: Iterable[int], groups: Iterable[int]) -> set[int]:
    """Return the processes that are in none of `groups`."""
    return {pid for pid in pids if not _in(pid, set(groups))}


def signal_processes(processes: Iterable[int], *signals: int) -> None:
    """Send `signals` to processes."""
    for number in signals:
        for pid in processes:
            _ignore_gone(os.kill, pid, number)


def signal_groups(groups: Iterable[int], *signals: int) -> None:
    """Send `signals` to all processes of process groups."""
    for number in signals:
        for group in groups:
            _ignore_gone(os.killpg, group, number)


def _in(pid: int, groups: set[int]) -> bool:
    try:
        return os.getpgid(pid) in groups
    except OSError:
        return True


def _ignore_gone(send, target: int, number: int) -> None:  # type: ignore[no-untyped-def]
    with contextlib.suppress(OSError):
        send(target, number)


def _wait_for_end(fd: int) -> list[int]:
    """Collect process ids until the launcher has gone."""
    received = b""
    while chunk := os.read(fd, 4096):
        received += chunk
    return [int(word) for word in received.split()]


def main(fd: int, job: str) -> None:
    """Wait for the end of the launcher, then kill the rest of `job`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    groups = _wait_for_end(fd)
    end = time.monotonic() + _TIMEOUT
    # The groups once and at first: when they are empty, their numbers may come to mean other
    # processes.
    pids = signal_job(job, groups, signal.SIGKILL)
    while pids and time.monotonic() < end:
        time.sleep(_PAUSE)
        pids = signal_job(job, (), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
