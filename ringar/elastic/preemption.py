"""Preemption: SIGTERM to a rank means that it has a moment to commit and to leave."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_asked = False


def is_asked() -> bool:
    """Return whether this rank has been told to leave."""
    return _asked


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Note SIGTERM in place of ending at once; a second one ends the process."""
    global _asked
    if threading.current_thread() is not threading.main_thread():
        yield  # the main thread alone receives signals
        return
    before = signal.getsignal(signal.SIGTERM)

    def note(number: int, _: FrameType | None) -> None:
        global _asked
        if _asked:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        _asked = True

    signal.signal(signal.SIGTERM, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
