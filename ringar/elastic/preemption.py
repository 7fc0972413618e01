"""Preemption: SIGTERM to a rank means that it has a moment to commit and to leave."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

_is_requested = False
_SAME = 1.0  # seconds within which a repeated signal counts as one


def is_requested() -> bool:
    """Return whether this rank has been told to leave."""
    return _is_requested


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Note SIGTERM in place of ending at once; a second one ends the process."""
    global _is_requested
    if threading.current_thread() is not threading.main_thread():
        yield  # the main thread alone receives signals
        return
    before, until = signal.getsignal(signal.SIGTERM), 0.0

    def note(number: int, _: FrameType | None) -> None:
        global _is_requested
        nonlocal until
        if time.monotonic() < until:  # a batch system and the launcher may both have sent it
            return
        until = time.monotonic() + _SAME
        if _is_requested:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        _is_requested = True

    signal.signal(signal.SIGTERM, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
