"""Simulation of asynchronous workers in one process, deterministic: as FRED (arXiv 1601.04033).

Workers live in virtual time. An event is the arrival of a push at a shard. A worker pulls all
shards at one time, computes for a random duration, and pushes to the shards one after the other.
Then it pulls again, as soon as all shards let it begin its next step. One generator draws all
random numbers, in the order of the events.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from ringar.asynchronous.gradients import Gradient
from ringar.asynchronous.log import Entry
from ringar.asynchronous.shard import Push, Shard

Values = list[list[np.ndarray]]
"""The values of variables, a list of arrays per shard."""

Gradients = Callable[[int, int, Values], Sequence[Sequence[Gradient]]]
"""A function of a worker, its step and values, which returns gradients, a list per shard."""

Durations = Callable[[np.random.Generator, int], float]
"""A function of a generator and a worker, which draws the duration of a step of this worker."""


def simulate(
    shards: Sequence[Shard],
    gradients: Gradients,
    workers: int,
    durations: Durations,
    seed: int,
    steps: int,
    *,
    transfer: float = 0.0,
) -> list[Entry]:
    """Train with workers that are simulated in this process.

    Args:
        shards: the shards, for this number of workers, in the order of their numbers. They are
            updated.
        gradients: as for `replay`; called when the worker pulls.
        workers: the number of workers.
        durations: draws the virtual time of a worker's step.
        seed: of the generator of `durations` and transfers. Equal seeds give equal runs.
        steps: the number of steps of each worker, which then leaves.
        transfer: the mean of the virtual time of a push to one shard, which is distributed
            exponentially.

    Returns:
        The log of all shards.

    Raises:
        ValueError: if `workers`, `steps` or `transfer` is out of range.
    """
    if workers < 1 or steps < 0 or transfer < 0:
        raise ValueError(
            "`workers` must be positive, `steps` and `transfer` not negative. Received: "
            f"workers={workers}, steps={steps}, transfer={transfer}"
        )
    generator = np.random.default_rng(seed)
    simulation = _Simulation(shards, gradients, generator, durations, steps, transfer)
    simulation.run(workers)
    return [entry for shard in shards for entry in shard.log]


class _Simulation:
    """Hold the events to come, and the workers that wait."""

    def __init__(
        self,
        shards: Sequence[Shard],
        gradients: Gradients,
        generator: np.random.Generator,
        durations: Durations,
        steps: int,
        transfer: float,
    ) -> None:
        self._shards, self._gradients = shards, gradients
        self._generator, self._durations = generator, durations
        self._steps, self._transfer = steps, transfer
        self._time = 0.0
        self._number = 0  # of events, so that those at one time keep their order
        self._events: list[tuple[float, int, int, Push]] = []
        self._next_steps: dict[int, int] = {}
        self._waiting: set[int] = set()

    def run(self, workers: int) -> None:
        """Let all workers take their steps."""
        self._next_steps = dict.fromkeys(range(workers), 0)
        self._waiting = set(range(workers)) if self._steps else set()
        self._begin_steps()
        while self._events:
            self._time, _, index, push = heapq.heappop(self._events)
            self._arrive(self._shards[index], push)
            if index == len(self._shards) - 1:
                self._end_step(push.worker)
            self._begin_steps()
        assert not self._waiting, f"workers {self._waiting} wait for no one"

    def _arrive(self, shard: Shard, push: Push) -> None:
        """Let a shard take a push, and the worker leave if it was the last one."""
        shard.take(push)
        if push.step == self._steps - 1:
            shard.leave(push.worker)

    def _end_step(self, worker: int) -> None:
        """Let a worker wait for its next step, unless it was the last one."""
        self._next_steps[worker] += 1
        if self._next_steps[worker] < self._steps:
            self._waiting.add(worker)

    def _begin_steps(self) -> None:
        """Let the workers go on that need not wait any longer."""
        for worker in sorted(self._waiting):
            if all(self._next_steps[worker] < shard.limit(worker) for shard in self._shards):
                self._waiting.remove(worker)
                self._begin_step(worker)

    def _begin_step(self, worker: int) -> None:
        """Pull, compute, and plan when the pushes arrive."""
        step = self._next_steps[worker]
        computed = self._gradients(worker, step, [shard.values() for shard in self._shards])
        time = self._time + self._durations(self._generator, worker)
        for index, (shard, gradients) in enumerate(zip(self._shards, computed, strict=True)):
            if self._transfer:
                time += self._generator.exponential(self._transfer)
            self._number += 1
            push = Push(worker, step, shard.version, gradients)
            heapq.heappush(self._events, (time, self._number, index, push))
