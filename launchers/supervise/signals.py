"""Receive signals between two steps of the launcher's loop, never in the middle of one."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType

_SAME = 0.2  # seconds


def _number(name: str) -> int:
    # Windows lacks most, and imports this file to say which systems have more than one rank.
    return int(getattr(signal, name, 0))


USER = (_number("SIGUSR1"), _number("SIGUSR2"))
"""The signals that are passed on to ranks with a handler for them."""

JOB_CONTROL = (_number("SIGTSTP"), _number("SIGCONT"))
"""The signals of Ctrl-Z, and of `fg` after it."""

ASK = _number("SIGALRM")
"""Asks guards to stop their ranks, which then have the time of `--kill-grace`.

srun and Open MPI's mpirun from version 5 pass it on and, unlike after SIGTERM, leave the job alone.
"""

ASK_OF_OTHERS = _number("SIGUSR1")
"""The same for hydra, which passes on no other signal, and for Open MPI 4."""


def name_of(number: int) -> str:
    """Return the name of a signal."""
    return signal.Signals(number).name


def ignored(number: int, ranks: Sequence[int]) -> str:
    """Return the message about a signal for which no rank has a handler."""
    name = name_of(number)
    who = f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"
    return (
        f"ignored {name}, for which {who} {'has' if len(ranks) == 1 else 'have'} no handler; "
        f"ringar.callbacks.SaveOnSignal(signals=[signal.{name}]) saves on it during `fit`"
    )


class Repetition:
    """Tells a second signal from the first one that has come twice.

    `timeout`, and programs that forward Ctrl-C to a child on the same terminal, send it twice at
    once. A second one that is meant follows later.
    """

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def is_one(self, number: int) -> bool:
        """Return whether signal `number` has come a moment ago."""
        now = time.monotonic()
        repeats = now < self._until.get(number, 0.0)
        if not repeats:
            self._until[number] = now + _SAME
        return repeats


class Signals:
    """A context in which signals only make a file descriptor readable.

    These are SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT.

    Args:
        action: called with the number of each signal, from `clear`.
        extras: other signals to treat so.
    """

    def __init__(self, action: Callable[[int], None], extras: Sequence[int] = ()) -> None:
        self._action = action
        self._repetition = Repetition()
        self._numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *USER, *JOB_CONTROL, *extras)
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._previous: dict[int, object] = {}
        self._previous_fd = -1

    def fileno(self) -> int:
        """Return a file descriptor that is readable after a signal."""
        return self._reader

    def have_come(self) -> bool:
        """Return whether there is a signal that has not been handled."""
        return bool(select.select([self._reader], [], [], 0)[0])

    def clear(self) -> None:
        """Make the file descriptor unreadable again, and handle the signals."""
        numbers = os.read(self._reader, 64)
        for place, number in enumerate(numbers):
            if number in JOB_CONTROL:
                if number == signal.SIGCONT or signal.SIGCONT not in numbers[place:]:
                    self._action(number)
            elif not self._repetition.is_one(number):
                self._action(number)

    def __enter__(self) -> Signals:
        self._previous_fd = signal.set_wakeup_fd(self._writer)
        for number in self._numbers:
            # nohup means that a lost terminal is to be ignored, and so may Ctrl-Z be.
            if (
                number not in (signal.SIGHUP, signal.SIGTSTP)
                or signal.getsignal(number) != signal.SIG_IGN
            ):
                self._previous[number] = signal.signal(number, _nothing)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._previous_fd)
        os.close(self._reader)
        os.close(self._writer)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal's number arrives through the wakeup file descriptor."""
