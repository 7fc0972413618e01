"""The reductions, under the names that Horovod's users know."""

from __future__ import annotations

import enum


class ReduceOp(enum.Enum):
    """How the arrays of all ranks become one."""

    SUM = "sum"
    AVERAGE = "average"  # a sum, scaled by 1 / ranks; floating dtypes only
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"


Sum = ReduceOp.SUM
Average = ReduceOp.AVERAGE
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
