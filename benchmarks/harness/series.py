"""The measurements of one case: times, wrong results, and the reason why there are no more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass
class Series:
    """One list of seconds per round, in which all cases had their turn."""

    rounds: list[list[float]] = field(default_factory=list)
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
