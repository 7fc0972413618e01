"""The reductions, under the names that Horovod's users know."""

from __future__ import annotations

import enum


class ReduceOp(enum.Enum):
    """Name a reduction: how the arrays of all ranks become one.

    Attributes:
        SUM: also `ringar.Sum`.
        AVERAGE: also `ringar.Average`.
        MIN: also `ringar.Min`.
        MAX: also `ringar.Max`.
        PRODUCT: also `ringar.Product`.
    """

    SUM = "sum"
    AVERAGE = "average"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"

    __hash__ = object.__hash__  # that of `enum.Enum` is a function of Python, and slow


Sum = ReduceOp.SUM
"""Add the arrays of all ranks, in rank order."""

Average = ReduceOp.AVERAGE
"""Divide the sum by the number of ranks; floating dtypes only."""

Min = ReduceOp.MIN
"""Take the minimum over the ranks, element by element."""

Max = ReduceOp.MAX
"""Take the maximum over the ranks, element by element."""

Product = ReduceOp.PRODUCT
"""Multiply the arrays of all ranks."""
