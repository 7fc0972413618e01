"""What was measured of one case: times, wrong results, and why nothing more came."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass
class Series:
    """One list of seconds per round, in which all cases had their turn."""

    rounds: list[list[float]] = field(default_factory=list)
    wrong: int = 0
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
        """Median, min and max over the rounds' medians, the fastest single time, and ``wrong``."""
        return {
            "seconds": self.seconds,
            "min": min(self.medians),
            "max": max(self.medians),
            "fastest": min(min(times) for times in self.rounds),
            "wrong": self.wrong,
        }
