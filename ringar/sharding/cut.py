"""The mark of a variable that is cut: its axis and its grid.

The mark is an attribute of the variable. Optimizer, broadcast, checks and conversions read it, and
need not know the layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras

    from ringar.sharding.grid import Grid


ATTRIBUTE = "_ringar_cut"
"""The attribute of a variable that holds its `Cut`."""


@dataclass(frozen=True)
class Cut:
    """Describe how a variable of one rank is a part of a whole variable.

    Attributes:
        axis: the axis along which the parts are joined.
        grid: the grid that has the parts.
        even: whether all parts have the same size along the axis.
    """

    axis: int
    grid: Grid
    even: bool = True


def cut_of(variable: keras.Variable) -> Cut | None:
    """Return how a variable is cut; None if every rank has it whole."""
    return getattr(variable, ATTRIBUTE, None)


def mark(variable: keras.Variable, cut: Cut) -> None:
    """Mark a variable as cut, if the grid has more than one part."""
    if cut.grid.model > 1:
        setattr(variable, ATTRIBUTE, cut)
