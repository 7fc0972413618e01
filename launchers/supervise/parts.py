"""Two parts of a runner, the starter and the joins; `failure_policy.py` has the third."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ringar.launchers.plan.job_plan import RankPlan
from ringar.launchers.supervise import signals
from ringar.launchers.supervise.output import Stream
from ringar.launchers.supervise.ranks import Rank

if TYPE_CHECKING:
    from ringar.launchers.supervise.runner import Runner


class Starter(ABC):
    """Begins the processes of a job, and takes signals to them.

    Attributes:
        runner: the runner that has this part.
        outputs: the streams of a process that are read, standard error last.
        carries_output: whether all output of the ranks passes through this process. Then the job
            ends with its reader, and no rank that is told to stop waits for a slow one.
    """

    runner: Runner
    outputs: tuple[str, ...] = ("stdout", "stderr")
    carries_output = True

    @property
    def passes_on(self) -> tuple[int, ...]:
        """The signals for ranks, which do not stop the job by themselves."""
        return signals.USER

    def begin(self) -> None:  # noqa: B027 (there may be nothing to do)
        """Do what comes before the first process."""

    def has_started(self, rank: Rank) -> None:  # noqa: B027
        """Do what comes after the start of a process."""

    @abstractmethod
    def spawn(self, plan: RankPlan, outputs: Mapping[str, int]) -> subprocess.Popen[bytes]:
        """Start a process; its `outputs` are pipes, by the name of the stream."""

    @abstractmethod
    def stream(self, plan: RankPlan, name: str, fd: int) -> Stream:
        """Return the stream that follows an output."""

    def remains(self) -> set[int]:
        """Return the living processes of the job on this host, beyond those that are known."""
        return set()

    def ask(self) -> float:
        """Ask the ranks to save, if SIGTERM does not; return the seconds that they have for it."""
        return 0.0

    @abstractmethod
    def stop(self) -> None:
        """Send SIGTERM to the ranks."""

    def stop_helpers(self) -> None:  # noqa: B027
        """Send SIGTERM to the processes that ranks have left behind."""

    @abstractmethod
    def kill(self) -> None:
        """End all processes at once."""

    @abstractmethod
    def pass_on(self, number: int) -> None:
        """Pass a signal on to the ranks."""

    def can_pause(self) -> bool:
        """Return whether the ranks can be stopped by Ctrl-Z; tell the user if not."""
        return True

    @abstractmethod
    def pause(self, number: int) -> None:
        """Stop the ranks (SIGTSTP), or let them go on (SIGCONT)."""

    def close(self) -> None:  # noqa: B027
        """Close all files."""


class Joins:
    """Ranks that stay the same; those of elastic jobs are derived from it."""

    runner: Runner

    def begin(self, now: float) -> None:
        """Start the first processes."""
        for plan in self.runner.job.ranks:
            self.runner.start_rank(plan)

    def step(self, now: float) -> None:
        """Take the steps that are due."""

    def timeout(self, timeout: float | None) -> float | None:
        """Return how long to wait for the next step, at most `timeout`."""
        return timeout

    def is_running(self) -> bool:
        """Return whether the job goes on without a process."""
        return False

    def on_exit(self, rank: Rank, now: float) -> None:
        """Take the end of a process."""
        self.runner.failure_policy.on_exit(rank, now)

    def on_stop(self) -> None:
        """Tell the processes that the job ends."""

    def close(self) -> None:
        """Close all files."""
