"""Targets: bounds that measured figures should keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness import report


@dataclass(frozen=True)
class Target:
    """A bound for one or several figures, all of which must keep it."""

    what: str
    bound: float
    unit: str
    measured: list[float]
    at_most: bool = False

    def row(self) -> list[str]:
        """Returns the title, the bound, the figures, and whether the worst of them keeps it."""
        sign = "<=" if self.at_most else ">="
        worst = max(self.measured) if self.at_most else min(self.measured)
        if any(figure != figure for figure in self.measured):
            verdict = "not measured"
        else:
            reached = worst <= self.bound if self.at_most else worst >= self.bound
            verdict = "yes" if reached else "no"
        text = ", ".join(f"{figure:.3g}" for figure in self.measured)
        return [self.what, f"{sign} {self.bound:g}{self.unit}", f"{text}{self.unit}", verdict]


def table(targets: Sequence[Target]) -> str:
    """Returns a table with one row per target."""
    return report.table(
        ["what", "target", "measured", "reached"], [target.row() for target in targets]
    )
