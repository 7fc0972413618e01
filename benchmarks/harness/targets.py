"""Targets: bounds that measured figures should keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

from benchmarks.harness import report


@dataclass(frozen=True)
class Target:
    """A bound for one or several figures, all of which must keep it; NaN: not measured."""

    title: str
    bound: float
    unit: str
    measured: list[float]
    at_most: bool = False

    def row(self) -> list[str]:
        """Returns the title, the bound, the figures, and whether they keep it."""
        sign = "<=" if self.at_most else ">="
        gaps = [isnan(figure) for figure in self.measured]
        missed = any(figure > self.bound if self.at_most else figure < self.bound
                     for figure in self.measured)  # fmt: skip
        verdict = "no" if missed else "not measured" if any(gaps) else "yes"
        text = ", ".join("?" if isnan(figure) else f"{figure:.3g}" for figure in self.measured)
        return [self.title, f"{sign} {self.bound:g}{self.unit}", f"{text}{self.unit}", verdict]


def table(targets: Sequence[Target]) -> str:
    """Returns a table with one row per target."""
    return report.table(
        ["what", "target", "measured", "reached"], [target.row() for target in targets]
    )
