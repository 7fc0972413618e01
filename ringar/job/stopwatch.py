"""How long a wait has lasted, as `tf_ops/engine/wait.h` measures it."""

from __future__ import annotations

import time

_LONGEST_PAUSE = 1.0  # seconds between two questions


class Stopwatch:
    """The seconds since its begin, without those in which this process was stopped (Ctrl-Z).

    Whoever waits asks again and again. An answer that comes much later than the one before shows a
    stop, for which no deadline is meant.
    """

    def __init__(self) -> None:
        self._begin = self._asked = time.monotonic()

    def seconds(self) -> float:
        """Return how long it has run."""
        now = time.monotonic()
        self._begin += max(now - self._asked - _LONGEST_PAUSE, 0.0)
        self._asked = now
        return now - self._begin
