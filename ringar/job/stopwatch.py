"""The duration of a wait, as `tf_ops/engine/wait.h` measures it."""

from __future__ import annotations

import time

_LONGEST_PAUSE = 1.0  # seconds between two questions


class Stopwatch:
    """Measure the seconds since its creation, without those in which this process was stopped.

    A waiting caller asks for the seconds again and again. A question that comes much later than the
    one before shows a stop (Ctrl-Z), which must not count for a deadline.
    """

    def __init__(self) -> None:
        self._begin = self._look = time.monotonic()

    def seconds(self) -> float:
        """Return how long it has run."""
        now = time.monotonic()
        self._begin += max(now - self._look - _LONGEST_PAUSE, 0.0)
        self._look = now
        return now - self._begin
