"""Which variable is cut, and along which axis: the variable itself says so.

Optimizer, broadcast, checks and conversions ask it, and nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ATTRIBUTE = "_ringar_cut"
"""Where a variable that is cut keeps its `Cut`."""


@dataclass(frozen=True)
class Cut:
    """Say how a variable of one rank is a part of a whole one.

    Attributes:
        axis: along which the parts are joined.
        grid: whose parts they are.
    """

    axis: int
    grid: Any


def cut_of(variable: Any) -> Cut | None:
    """Return how a variable is cut; None: every rank has it whole."""
    return getattr(variable, ATTRIBUTE, None)


def mark(variable: Any, cut: Cut) -> None:
    """Note that a variable is cut, if there is more than one part."""
    if cut.grid.model > 1:
        setattr(variable, ATTRIBUTE, cut)
