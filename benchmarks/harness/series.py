"""The measurements of one case: times, wrong results, and the reason why there are no more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any


@dataclass
class Series:
    """One list of seconds per round, in which all cases had their turn."""

    rounds: list[list[float]] = field(default_factory=list)
    bounds: list[list[float]] = field(default_factory=list)
    """What `rounds` would be if the processes waited for each other in every step."""
    errors: int = 0
    failure: str = ""

    @property
    def medians(self) -> list[float]:
        """One per round."""
        return [median(times) for times in self.rounds]

    @property
    def seconds(self) -> float:
        """The median over the rounds."""
        return median(self.medians)

    @property
    def bound(self) -> float:
        """The median over the rounds of their bounds; NaN without."""
        return median(map(median, self.bounds)) if self.bounds else float("nan")

    def summary(self) -> dict[str, Any]:
        """Returns median, min and max of the rounds' medians, the fastest time, and `wrong`."""
        return {
            "seconds": self.seconds,
            "min": min(self.medians),
            "max": max(self.medians),
            "fastest": min(min(times) for times in self.rounds),
            "wrong": self.errors,
        }


def slowest_rank(reports: list[dict[str, Any]], index: int) -> list[float]:
    """Returns the times of the rank whose median is largest: a collective ends on all ranks."""
    return max((r["results"][index]["times"] for r in reports), key=median)


def slowest(by_rank: Iterable[Sequence[float]]) -> list[float]:
    """Returns the time of the slowest rank in each round, given the rounds of every rank."""
    return [max(times) for times in zip(*by_rank, strict=True)]


def step_by_step(by_rank: Iterable[Sequence[Sequence[float]]]) -> list[float]:
    """Returns, for each epoch, the mean of the longest of all ranks' steps, step by step.

    Ranks that wait for each other in every step cannot be faster than that.
    """
    return [fmean(slowest(epoch)) for epoch in zip(*by_rank, strict=True)]
