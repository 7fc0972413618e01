"""A long program of random collectives, the same on every rank, in all modes and process sets.

What each test of one collective cannot see: what one leaves behind for the next.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.collectives import common

STEPS = 150


@dataclasses.dataclass
class Step:
    """One collective of the program; ``arrays`` are those of the members, in their order."""

    collective: str
    mode: str
    op: ringar.ReduceOp
    arrays: list[np.ndarray]
    splits: list[list[int]]
    process_set: ringar.ProcessSet

    def run(self) -> list[np.ndarray]:
        place = self.process_set.rank()
        return common.run(self.mode, lambda t: self.call(t, place), self.arrays[place])

    def call(self, tensor: Any, place: int) -> list[Any]:
        where: Any = {"process_set": self.process_set}
        if self.collective == "allreduce":
            return [ringar.allreduce(tensor, self.op, **where)]
        if self.collective == "reducescatter":
            return [ringar.reducescatter(tensor, self.op, **where)]
        if self.collective == "allgather":
            return [ringar.allgather(tensor, **where)]
        if self.collective == "broadcast":
            return [ringar.broadcast(tensor, self.process_set.ranks[-1], **where)]
        if self.mode == "compiled":
            return [ringar.alltoall(tensor, **where)]
        return [ringar.alltoall(tensor, self.splits[place], **where)[0]]

    def expected(self) -> list[np.ndarray]:
        place, members = self.process_set.rank(), self.process_set.size()
        if self.collective == "allreduce":
            return [common.reduced(self.op, self.arrays)]
        if self.collective == "reducescatter":
            return [np.array_split(common.reduced(self.op, self.arrays), members)[place]]
        if self.collective == "allgather":
            return [np.concatenate(self.arrays)]
        if self.collective == "broadcast":
            return [self.arrays[-1]]
        cuts = [np.cumsum(split)[:-1] for split in self.splits]
        parts = [np.split(a, cut)[place] for a, cut in zip(self.arrays, cuts, strict=True)]
        return [np.concatenate(parts)]


def random_step(rng: np.random.Generator, sets: list[ringar.ProcessSet], seed: int) -> Step:
    """Drawn alike on every rank, whether it takes part or not."""
    mode = str(rng.choice(common.MODES, p=[0.4, 0.3, 0.2, 0.1]))
    names = ["allreduce", "reducescatter", "allgather", "broadcast", "alltoall"]
    collective = str(rng.choice(names, p=[0.4, 0.15, 0.15, 0.15, 0.15]))
    reduces = collective in ("allreduce", "reducescatter")
    dtype = str(rng.choice(common.REDUCIBLE if reduces else common.MOVED))
    op = [ringar.Sum, ringar.Min, ringar.Max, ringar.Product][rng.integers(4)]
    process_set = sets[rng.integers(len(sets))]
    members = process_set.size()
    rows = int(2 ** rng.uniform(0, 15)) if rng.random() < 0.9 else 0
    tail = [(), (3,), (2, 2)][rng.integers(3)]
    row_counts = [rows] * members
    if collective in ("allgather", "alltoall") and mode != "compiled":
        row_counts = [int(rows * share) for share in rng.random(members)]
    elif collective == "alltoall":
        row_counts = [rows * members] * members
    splits = [np.diff(np.sort(rng.integers(0, n + 1, members - 1)), prepend=0) for n in row_counts]
    splits_of_ranks = [
        [*map(int, s), n - int(sum(s))] for s, n in zip(splits, row_counts, strict=True)
    ]
    if mode == "compiled":
        splits_of_ranks = [[rows] * members] * members
    arrays = [common.values(dtype, (n, *tail), 100 * seed + i) for i, n in enumerate(row_counts)]
    return Step(collective, mode, op, arrays, splits_of_ranks, process_set)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_program(seed: int) -> None:
    ranks = list(range(ringar.size()))
    sets = [ringar.global_process_set, ringar.global_process_set]
    subsets = [ringar.add_process_set(members) for members in (ranks[::-1], ranks[1:] or ranks)]
    rng = np.random.default_rng(seed)
    for number in range(STEPS):
        step = random_step(rng, sets + subsets, number)
        if not step.process_set.included():
            continue
        results = step.run()
        case = (number, step.collective, step.mode, step.op, step.process_set.ranks)
        common.assert_all_same(results, step.expected(), case)
    for process_set in subsets:
        ringar.remove_process_set(process_set)


@pytest.mark.slow
@pytest.mark.deadline(600)
def test_a_long_loop_leaks_nothing() -> None:
    """Memory stays where it is over thousands of steps of every kind."""
    statm = "/proc/self/statm"

    def resident() -> int:
        with open(statm) as file:
            return int(file.read().split()[1]) * 4096

    array = common.of_all_ranks("float32", (50_000,))[ringar.rank()]
    tensor = tf.constant(array)
    graph = tf.function(lambda t: ringar.allgather(ringar.allreduce(t)))
    compiled = tf.function(
        lambda t: ringar.alltoall(ringar.allreduce(t)[: 12 * 4000]), jit_compile=True
    )

    def rounds(count: int) -> int:
        for _ in range(count):
            ringar.allreduce(array)
            ringar.allgather(array)
            ringar.alltoall(
                array,
                [array.size // ringar.size()] * (ringar.size() - 1)
                + [array.size - array.size // ringar.size() * (ringar.size() - 1)],
            )
            ringar.reducescatter(tensor)
            graph(tensor)
            compiled(tensor)
        return resident()

    rounds(300)
    before = rounds(300)
    assert rounds(3000) - before < 16e6
