"""Horovod's reductions, with their numbers."""

from __future__ import annotations

import enum

from ringar.collectives import ops


class ReduceOp(enum.IntEnum):
    """Name a reduction, as `hvd.Average` and the others do."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5

    @property
    def of_ringar(self) -> ops.ReduceOp:
        """The reduction of ringar; there is none for Adasum."""
        return ops.ReduceOp[self.name.upper()]


Average, Sum, Adasum, Min, Max, Product = ReduceOp
