"""Rank 1 calls another collective than the others, in every possible way."""

from __future__ import annotations

import numpy as np

import ringar
from tests.faults.job import RANK
from tests.faults.scripts.modes import Make, attempt_in, attempt_in_all_modes, ones

ODD = RANK == 1


def collective(make: Make) -> None:
    if ODD:
        ringar.allgather(make(ones(4)), name="t")
    else:
        ringar.allreduce(make(ones(4)), ringar.Sum, name="t")


def shape(make: Make) -> None:
    ringar.allreduce(make(ones(5) if ODD else ones(4)), ringar.Sum, name="t")


def dimensions(make: Make) -> None:
    ringar.allgather(make(ones(2, 3) if ODD else ones(2, 4)), name="t")


def dtype(make: Make) -> None:
    ringar.allreduce(make(ones(4, dtype=np.float64 if ODD else np.float32)), ringar.Sum, name="t")


def op(make: Make) -> None:
    ringar.allreduce(make(ones(4)), ringar.Max if ODD else ringar.Sum, name="t")


def scale(make: Make) -> None:
    factor = 0.5 if ODD else 1.0
    ringar.allreduce(make(ones(4)), ringar.Sum, prescale_factor=factor, name="t")


def name(make: Make) -> None:
    ringar.allreduce(make(ones(4)), ringar.Sum, name="mine" if ODD else "ours")


def count(make: Make) -> None:
    tensors = [make(ones(4)) for _ in range(3 if ODD else 2)]
    ringar.grouped_allreduce(tensors, ringar.Sum, name="t")


def root(make: Make) -> None:
    ringar.broadcast(make(ones(4)), 1 if ODD else 0, name="t")


def movement(make: Make) -> None:
    if ODD:
        ringar.broadcast(make(ones(6)), 2, name="t")
    else:
        ringar.alltoall(make(ones(6)), name="t")


def large(make: Make) -> None:
    """Too long for the issuing thread: the engine's thread runs it."""
    ringar.allreduce(make(ones(300_000 + ODD)), ringar.Sum, name="t")


def rows(make: Make) -> None:
    """Ranks may differ in these, but not in compiled code."""
    ringar.allgather(make(ones(3 if ODD else 4)), name="t")


ringar.init(deadline=20, stall_warning=10)
attempt_in_all_modes(
    {
        scenario.__name__: scenario
        for scenario in (
            *(collective, shape, dimensions, dtype, op, scale, name, count, root, movement, large),
        )
    }
)
attempt_in("compiled", "rows", rows)
