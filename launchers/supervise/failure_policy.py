"""Failure policies: whether the others go on, how long they have, which rank the report names."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ringar.launchers.supervise import clock, failures, graces, signals
from ringar.launchers.supervise.ranks import Rank

if TYPE_CHECKING:
    from ringar.launchers.supervise.runner import Runner


class Stop:
    """The end of a job, and its cause.

    Attributes:
        signal: the first signal that told the launcher to stop; 0: none.
        count: the number of such signals.
        passed_on: the signals that were passed on to ranks.
        term_at: when SIGTERM is due; None: nothing has ended the job yet.
        kill_at: when SIGKILL is due.
    """

    def __init__(self) -> None:
        self.signal = 0
        self.count = 0
        self.passed_on: set[int] = set()
        self.term_at: float | None = None
        self.kill_at: float | None = None

    def at(self, when: float) -> None:
        """Stop the ranks then, or earlier."""
        self.term_at = min(when, self.term_at or when)

    def on_signal(self, number: int, seconds: float) -> None:
        """Take a signal: the first one stops the ranks in some seconds, the second one kills."""
        now = clock.now()
        self.count += 1
        if self.count > 1:
            self.kill_at = now
        if self.signal in (0, signal.SIGPIPE):  # Ctrl-C ends the `tee` of a pipeline, too
            self.signal = number
        self.at(now + seconds)

    def has_obeyed(self, code: int) -> bool:
        """Return whether an exit code says that a rank ends on a signal that was passed on."""
        return code - 128 in self.passed_on


class FailurePolicy:
    """Decide on failures of ranks on this host, below no guard; the base class of other policies.

    Attributes:
        failures: the ranks that failed before they were told to stop, in the order of their death.
    """

    runner: Runner

    def __init__(self) -> None:
        self.failures: list[Rank] = []

    @property
    def stop(self) -> Stop:
        """The end of the job."""
        return self.runner.stop

    def step(self, now: float) -> None:
        """Take the steps that are due."""

    def timeout(self, timeout: float | None) -> float | None:
        """Return how long to wait for the next step, at most `timeout`."""
        return timeout

    def on_exit(self, rank: Rank, now: float) -> None:
        """Take the end of a rank."""
        self.runner.say(f"rank {rank.number}: ended with {rank.status}")
        if rank.status is None:
            return
        self.note_obedience(rank.status.exit_code, now)
        if rank.status.ok or rank.is_stopped or self.stop.signal:
            return
        self.failures.append(rank)
        if self.goes_on():
            self.on_allowed_failure(rank)
        else:
            self.stop.at(now + self.grace_after(rank))

    def goes_on(self) -> bool:
        """Return whether the ranks that have failed may fail while others go on."""
        count = len(self.runner.ranks)
        return len(self.failures) <= min(self.runner.job.max_failures, count - 1)

    def on_allowed_failure(self, rank: Rank) -> None:
        """Tell of a rank that may fail."""
        text = f"rank {rank.number} of {len(self.runner.ranks)} {failures.ending(rank)}"
        self.runner.note(f"{text}; {failures.OTHERS_GO_ON}")

    def grace_after(self, rank: Rank) -> float:
        """Return the seconds that the others may go on after the failure of `rank`."""
        return grace_for_cause(rank)

    def note_obedience(self, code: int, now: float) -> None:
        """End the job if a rank's exit code says that it ends on a signal that was passed on.

        The other ranks are about to end, too.
        """
        if not self.stop.signal and self.stop.has_obeyed(code):
            self.stop.signal = code - 128
            self.stop.at(now + self.kill_grace())

    def kill_grace(self) -> float:
        """Return the seconds from SIGTERM to SIGKILL: other than usual only after a signal."""
        grace = self.runner.job.kill_grace if self.stop.signal else None
        return graces.KILL if grace is None else grace

    def report(self) -> None:
        """Tell the user why the job has ended, unless all ranks have ended well."""
        for stream in self.runner.streams():  # a fault of the last read
            self.runner.warn_of_copy(stream)
        if self.failures and not self.goes_on():
            text, tail = failures.report(self.last_ranks(), self.failures)
            for line in tail:
                self.runner.err.line(line)
            self.runner.note(text)
        elif self.stop.signal == signal.SIGPIPE:
            for name, screen, other in self.runner.screens():
                if screen.broken:
                    other.message(f"stopped all ranks: the reader of the standard {name} has gone")
        elif self.stop.signal:
            self.note_signal()

    def note_signal(self) -> None:
        """Tell the user that a signal has ended the job."""
        self.runner.note(f"stopped all ranks on {signals.name_of(self.stop.signal)}")

    def last_ranks(self) -> Sequence[Rank]:
        """Return the processes that were ranks in the end."""
        return self.runner.ranks

    def exit_code(self) -> int:
        """Return the exit code of the launcher."""
        if self.failures and not self.goes_on():
            status = failures.cause(self.failures).status
            return status.exit_code if status else 1
        return 128 + self.stop.signal if self.stop.signal else 0


def grace_for_cause(rank: Rank) -> float:
    """Return the seconds for the rank whose loss `rank` reports; 0 if it reports none."""
    # A rank that only reports a lost peer may overtake that peer on the way out.
    return graces.CAUSE if failures.is_consequence(rank) else 0.0
