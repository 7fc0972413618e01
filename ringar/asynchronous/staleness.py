"""Staleness control: which pushes make an update, at which rate, and which workers wait.

The *version* of a shard is the number of updates that were applied to it. A push carries the
version that its gradients were computed from. Its *staleness* tau is the number of updates that
came in between: the version that it is applied to minus the version that it was computed from.

A `StalenessControl` has settings and rules, and no state. A `Judge` has the state of one shard: the
*clock* of each worker, which is the number of its pushes that were taken, the workers that are
still active, and the pushes that wait for an update. Both are plain data. They know neither
gradients nor communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ringar.errors import MismatchError

UNLIMITED = 2**62
"""The limit of a worker that never waits."""

Rate = Literal["constant", "staleness"]
"""The learning rate alpha0 for each gradient, or alpha0 / tau."""


class Arrival(NamedTuple):
    """Describe a push without its gradients.

    Attributes:
        worker: the worker's number.
        step: the number of this worker's push.
        version: the version that the gradients were computed from.
    """

    worker: int
    step: int
    version: int


@dataclass(frozen=True)
class StalenessControl:
    """Define which pushes make an update, at which rate, and which workers wait."""

    def judge(self, workers: int) -> Judge:
        """Return the state of a shard at its beginning.

        Args:
            workers: the number of workers that push to the shard.

        Raises:
            ValueError: if `workers` is not positive, or the settings need another number.
        """
        if not isinstance(workers, int) or workers < 1:
            raise ValueError(f"`workers` must be a positive number. Received: workers={workers!r}")
        self.check(workers)
        return Judge(self, workers)

    def check(self, workers: int) -> None:
        """Raise a ValueError if the settings do not fit this number of workers."""

    def factor(self, staleness: int) -> float:
        """Return the factor of the learning rate for a gradient of this staleness."""
        return 1.0

    def is_dropped(self, arrival: Arrival, version: int) -> bool:
        """Return whether a push is dropped at this version of the shard."""
        return False

    def next_update(self, judge: Judge) -> list[Arrival]:
        """Return which of `judge.queue` make the next update; an empty list if none do yet."""
        return judge.queue[:1]

    def limit(self, judge: Judge, worker: int) -> int:
        """Return the number of the first step that `worker` may not begin yet."""
        return UNLIMITED


@dataclass(frozen=True)
class Asynchronous(StalenessControl):
    """Make each push an update: no worker waits.

    Args:
        rate: "constant"; or "staleness", for the learning rate alpha0 / tau, where tau = 0 counts
            as 1 (Gupta, Zhang and Wang 2015).

    Raises:
        ValueError: if `rate` is another one.
    """

    rate: Rate = "constant"

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def factor(self, staleness: int) -> float:
        """Return 1, or 1 / tau."""
        return _factor(self.rate, staleness)


@dataclass(frozen=True)
class SoftSync(StalenessControl):
    """Make c gradients an update, by their mean: n-softsync (Gupta, Zhang and Wang 2015).

    With lambda workers c = floor(lambda / n), and at least 1. No worker waits, and several of the c
    gradients may be one worker's. With n = lambda it is `Asynchronous`. With n = 1 an update has as
    many gradients as there are workers. The staleness is n in the mean.

    Args:
        n: the number of updates in the time in which each worker pushes once, from 1 to lambda.
        rate: "constant"; or "staleness": each gradient counts with its alpha0 / tau.

    Raises:
        ValueError: if an argument is out of range.
    """

    n: int = 1
    rate: Rate = "constant"

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or self.n < 1:
            raise ValueError(
                "`n` must be a positive number, at most the number of workers. "
                f"Received: n={self.n!r}"
            )
        _check_rate(self.rate)

    def check(self, workers: int) -> None:
        """Expect no more than one update per worker."""
        if self.n > workers:
            raise ValueError(
                "`n` must be at most the number of workers, so that an update has at least one "
                f"gradient. Received: n={self.n}, workers={workers}"
            )

    def factor(self, staleness: int) -> float:
        """Return 1, or 1 / tau."""
        return _factor(self.rate, staleness)

    def next_update(self, judge: Judge) -> list[Arrival]:
        """Return the queue, once it has c gradients."""
        quorum = max(1, len(judge.active) // self.n)
        return judge.queue[:] if len(judge.queue) >= quorum else []


@dataclass(frozen=True)
class BackupWorkers(StalenessControl):
    """Make the first N gradients of a version an update, by their mean, and drop late ones.

    Of N + `backups` workers, those whose gradient is in the next update wait for it. The others
    push a gradient of an old version, which is dropped, and go on from the new one (Chen et al.
    2016). As workers leave, the backups take their places; then N is the number of those that are
    left.

    Args:
        backups: how many workers an update does not wait for, 0 or more.

    Raises:
        ValueError: if `backups` is negative.
    """

    backups: int

    def __post_init__(self) -> None:
        if not isinstance(self.backups, int) or self.backups < 0:
            raise ValueError(
                f"`backups` must be a number, 0 or more. Received: backups={self.backups!r}"
            )

    def check(self, workers: int) -> None:
        """Expect a worker that is no backup."""
        if self.backups >= workers:
            raise ValueError(
                "`backups` must be less than the number of workers, which includes them. "
                f"Received: backups={self.backups}, workers={workers}"
            )

    def is_dropped(self, arrival: Arrival, version: int) -> bool:
        """Return whether the version has been updated since."""
        return arrival.version < version

    def next_update(self, judge: Judge) -> list[Arrival]:
        """Return the queue, once it has N gradients."""
        possible = len(judge.active.union(arrival.worker for arrival in judge.queue))
        quorum = min(judge.workers - self.backups, possible)
        return judge.queue[:] if judge.queue and len(judge.queue) >= quorum else []

    def limit(self, judge: Judge, worker: int) -> int:
        """Let a worker wait for the update that its gradient is part of."""
        waits = any(arrival.worker == worker for arrival in judge.queue)
        return judge.clocks[worker] + (0 if waits else 1)


@dataclass(frozen=True)
class HardSync(StalenessControl):
    """Make one gradient of each worker an update, by their mean; workers wait for it.

    It equals synchronous SGD with the batch of all workers together (Gupta, Zhang and Wang 2015).
    Every gradient has a staleness of 0: workers have to fetch before each step.
    """

    def next_update(self, judge: Judge) -> list[Arrival]:
        """Return the queue, once it has a gradient of each active worker."""
        return BackupWorkers(0).next_update(judge)

    def limit(self, judge: Judge, worker: int) -> int:
        """Let a worker wait for the update that its gradient is part of."""
        return BackupWorkers(0).limit(judge, worker)

    def is_dropped(self, arrival: Arrival, version: int) -> bool:
        """Raise an error for a gradient of another version; drop none."""
        if arrival.version != version:
            raise MismatchError(
                f"Worker {arrival.worker} pushed step {arrival.step} computed from version "
                f"{arrival.version}. With HardSync all gradients of an update are computed from "
                f"one version. Expected: version {version}. Fetch before each step (n_fetch=1)."
            )
        return False


@dataclass(frozen=True)
class StaleSynchronous(StalenessControl):
    """Let a worker be at most `bound` steps ahead of the slowest: SSP (Ho et al. 2013).

    Each push is an update. A worker in step s has seen all pushes of the steps before s - `bound`,
    and perhaps some later ones, but none of a worker that waits: the push of step s is applied once
    all workers have made their push of step s - `bound`. With `bound` 0 it is bulk synchronous:
    in step s all workers compute from all pushes of the steps before s, and no other.

    Args:
        bound: the number of steps, 0 or more.

    Raises:
        ValueError: if `bound` is negative.
    """

    bound: int

    def __post_init__(self) -> None:
        if not isinstance(self.bound, int) or self.bound < 0:
            raise ValueError(
                f"`bound` must be a number of steps, 0 or more. Received: bound={self.bound!r}"
            )

    def next_update(self, judge: Judge) -> list[Arrival]:
        """Return the first push of the earliest step that all workers may see."""
        end = judge.slowest() + self.bound
        visible = [arrival for arrival in judge.queue if arrival.step < end]
        return [min(visible, key=lambda arrival: (arrival.step, arrival.worker))] if visible else []

    def limit(self, judge: Judge, worker: int) -> int:
        """Let a worker wait for the slowest."""
        return judge.slowest() + self.bound + 1


class Judge:
    """Judge the pushes to one shard.

    Attributes:
        workers: the number of workers at the beginning.
        clocks: per worker, the number of its pushes that were taken.
        active: the workers that have not left.
        queue: the pushes that wait for an update, in the order in which they were taken.
    """

    def __init__(self, control: StalenessControl, workers: int) -> None:
        self._control = control
        self.workers = workers
        self.clocks = [0] * workers
        self.active = set(range(workers))
        self.queue: list[Arrival] = []

    def check(self, arrival: Arrival, version: int) -> None:
        """Raise a MismatchError if a push cannot come now, at this version of the shard."""
        worker, step = arrival.worker, arrival.step
        if not 0 <= worker < self.workers:
            raise MismatchError(
                f"Worker {worker} pushed, which does not exist. "
                f"Expected: a worker from 0 to {self.workers - 1}."
            )
        if worker not in self.active:
            raise MismatchError(
                f"Worker {worker} pushed step {step} after it had left. Expected: no push. "
                "A worker that was given up has to start again."
            )
        if arrival.version < 0:
            raise MismatchError(
                f"Worker {worker} pushed step {step} before its first pull "
                f"(version {arrival.version}). Expected: a version from 0 to {version}. "
                "Pull first."
            )
        if arrival.version > version:
            raise MismatchError(
                f"Worker {worker} pushed step {step} computed from version {arrival.version}, "
                f"which is in the future. Expected: a version from 0 to {version}."
            )
        if step != self.clocks[worker]:
            raise MismatchError(
                f"Worker {worker} pushed step {step}. Expected: step {self.clocks[worker]}, since "
                "a worker pushes each of its steps once, in order."
            )
        if step >= self.limit(worker):
            raise MismatchError(
                f"Worker {worker} pushed step {step} without waiting. Expected: a step below "
                f"{self.limit(worker)}, by {self._control}. Ask for the limit before each step."
            )

    def take(self, arrival: Arrival, version: int) -> bool:
        """Hold a push that was checked, and return True; return False if it is dropped."""
        is_dropped = self._control.is_dropped(arrival, version)
        self.clocks[arrival.worker] += 1
        if not is_dropped:
            self.queue.append(arrival)
        return not is_dropped

    def next_update(self) -> list[Arrival]:
        """Return the pushes that make the next update, and hold them no longer.

        They are in the order of workers, so that the sum does not depend on the order in which they
        arrived. The list is empty if there is no update yet.
        """
        chosen = self._control.next_update(self)
        self.queue = [arrival for arrival in self.queue if arrival not in chosen]
        return sorted(chosen)

    def limit(self, worker: int) -> int:
        """Return the number of the first step that `worker` may not begin yet."""
        return self._control.limit(self, worker)

    def leave(self, worker: int) -> None:
        """Wait for `worker` no longer. Its pushes count."""
        self.active.discard(worker)

    def slowest(self) -> int:
        """Return the clock of the slowest active worker."""
        return min((self.clocks[worker] for worker in self.active), default=UNLIMITED)


def mean_factor(factors: Sequence[float]) -> float:
    """Return the factor of the learning rate for an update of gradients with these factors."""
    return sum(factors) / len(factors)


def _check_rate(rate: str) -> None:
    if rate not in ("constant", "staleness"):
        raise ValueError(f'`rate` must be "constant" or "staleness". Received: rate={rate!r}')


def _factor(rate: Rate, staleness: int) -> float:
    return 1.0 if rate == "constant" else 1.0 / max(staleness, 1)
