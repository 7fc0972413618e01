"""The rounds that schedulers take to the same objective, on all ranks of a job."""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np

import ringar
from benchmarks.scheduled.designs import steepest
from ringar.research.scheduled import (
    Dynamic,
    Lasso,
    Progress,
    Random,
    RoundRobin,
    Scheduler,
)

PICKS, RHO = 32, 0.5
PART_OF_STEEPEST = 0.1
"""alpha, in parts of the one whose solution is 0."""
EVERY = 10
UNCHECKED_LIMIT = 1000
"""Rounds in which updates without a dependency check come to the objective, or never."""


@dataclasses.dataclass
class Reached:
    """How a scheduler came to the objective.

    Attributes:
        rounds: the number of rounds; infinite if it did not.
        seconds: the time that they took.
        curve: after how many rounds, and how many seconds, the objective had which value.
        rises: how often an evaluation was above the one before.
        gap: the duality gap over the objective at the end.
    """

    rounds: float = math.inf
    seconds: float = math.nan
    curve: list[tuple[int, float, float]] = dataclasses.field(default_factory=list)
    rises: int = 0
    gap: float = math.inf


def schedulers(picks: int = PICKS) -> dict[str, Scheduler]:
    """Returns the schedulers to compare, by name."""
    return {
        "dynamic": Dynamic(picks, rho=RHO),
        "round robin": RoundRobin(picks, rho=RHO),
        "random": Random(picks, rho=RHO),
        "dynamic, unchecked": Dynamic(picks, rho=None),
        "round robin, unchecked": RoundRobin(picks),
    }


def fit(
    data: tuple[np.ndarray, np.ndarray],
    scheduler: Scheduler,
    *,
    target: float,
    limit: int,
    cut: str = "rows",
    tolerance: float | None = None,
) -> Reached:
    """Fits a Lasso until the objective is at most a target, each rank with its part of the data."""
    x, y = data
    rank, size = ringar.rank(), ringar.size()
    alpha = PART_OF_STEEPEST * steepest(x, y)
    block = np.array_split(x, size, axis=0 if cut == "rows" else 1)[rank]
    targets = np.array_split(y, size)[rank] if cut == "rows" else y
    outcome, start = Reached(), 0.0

    def note(progress: Progress) -> bool:
        nonlocal start
        start = start or time.perf_counter()
        seconds = time.perf_counter() - start
        if outcome.curve and progress.objective > outcome.curve[-1][2] * (1 + 1e-12):
            outcome.rises += 1
        outcome.curve.append((progress.round, seconds, progress.objective))
        if progress.objective <= target:
            outcome.rounds, outcome.seconds = progress.round, seconds
        return progress.objective <= target

    period = EVERY if tolerance is None else max(EVERY, x.shape[1] // scheduler.picks)
    model = Lasso(
        alpha, cut=cut, scheduler=scheduler, rounds=limit, every=period, tolerance=tolerance
    )
    try:
        model.fit(block, targets, callbacks=[note])
        outcome.gap = model.dual_gap_ / model.objectives_[-1]
    except FloatingPointError:
        pass  # that is what unchecked updates may do, and the curve shows it
    return outcome


def to_reach(
    data: tuple[np.ndarray, np.ndarray],
    *,
    share: float = 1e-4,
    limit: int = 30_000,
    picks: int = PICKS,
    cut: str = "rows",
    names: tuple[str, ...] = ("dynamic", "round robin"),
) -> dict[str, Reached]:
    """Returns how schedulers come within a share of the optimum.

    The optimum is the objective of a run until its duality gap is below a tenth of that share.
    """
    kinds = schedulers(picks)
    best = fit(data, kinds["dynamic"], target=-math.inf, limit=limit, cut=cut, tolerance=share / 10)
    if best.gap > share / 10:
        raise ArithmeticError(f"the optimum was not found: a gap of {best.gap:.1e}")
    target = best.curve[-1][2] * (1 + share)
    return {
        name: fit(
            data, kinds[name], target=target, cut=cut,
            limit=limit if kinds[name].is_checked else min(limit, UNCHECKED_LIMIT),
        )
        for name in names
    }  # fmt: skip
