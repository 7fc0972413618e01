"""The time of the launcher, which stands still while the job is stopped (Ctrl-Z).

So a deadline in some seconds is in as many seconds of the job.
"""

from __future__ import annotations

import selectors
import time

_LATE = 1.0  # seconds, on a busy machine

_stopped_seconds = 0.0  # seconds, up to now
_stopped_at: float | None = None  # while it is


def now() -> float:
    """Return the seconds since some moment, without those in which the job was stopped."""
    return (time.monotonic() if _stopped_at is None else _stopped_at) - _stopped_seconds


def select(
    poll: selectors.BaseSelector, timeout: float | None
) -> list[tuple[selectors.SelectorKey, int]]:
    """Wait for events; time beyond the timeout does not count, since this process was stopped then.

    A container that is paused gets no signal that would tell.
    """
    global _stopped_seconds
    begin = time.monotonic()
    events = poll.select(timeout)
    if timeout is not None and _stopped_at is None:
        _stopped_seconds += max(time.monotonic() - begin - timeout - _LATE, 0.0)
    return events


def stop() -> None:
    """Let the time stand still."""
    global _stopped_at
    if _stopped_at is None:
        _stopped_at = time.monotonic()


def go_on() -> None:
    """Let the time go on."""
    global _stopped_seconds, _stopped_at
    if _stopped_at is not None:
        _stopped_seconds += time.monotonic() - _stopped_at
        _stopped_at = None
