"""What is right for each collective, against plain loops, and the rates of nccl-tests."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.harness.definitions import DEFINITIONS, contribution, input_of


def right(collective: str, inputs: list[np.ndarray], rank: int) -> np.ndarray:
    """The result of ``rank``, said as plainly as possible."""
    total = np.sum(inputs, axis=0)
    part = inputs[0].size // len(inputs)
    block = slice(rank * part, (rank + 1) * part)
    if collective == "reducescatter":
        return total[block]
    if collective == "alltoall":
        return np.concatenate([x[block] for x in inputs])
    simple = {"allreduce": total, "allgather": np.concatenate(inputs), "broadcast": inputs[0]}
    return simple[collective]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [4, 64, 4096])
def test_expected_results(size: int, ranks: int) -> None:
    for name, definition in DEFINITIONS.items():
        total = definition.elements(size, ranks)
        inputs = [input_of(name, total, r, ranks) for r in range(ranks)]
        for rank in range(ranks):
            result = definition.expected(total, rank, ranks)
            np.testing.assert_array_equal(result, right(name, inputs, rank), name)


def test_sizes_are_those_of_nccl_tests() -> None:
    assert {name: d.factor(4) for name, d in DEFINITIONS.items()} == {
        "allreduce": 1.5,
        "allgather": 0.75,
        "reducescatter": 0.75,
        "broadcast": 1.0,
        "alltoall": 0.75,
    }
    assert DEFINITIONS["allreduce"].elements(4, 4) == 1
    assert DEFINITIONS["alltoall"].elements(4, 4) == 4
    assert DEFINITIONS["allgather"].elements(1 << 20, 3) == 262143
    assert input_of("allgather", 12, 0, 4).size == 3


def test_ranks_and_parts_can_be_told_apart() -> None:
    contributions = [contribution(rank, 1024).tobytes() for rank in range(64)]
    assert len(set(contributions)) == 64
    parts = contribution(0, 1 << 20).reshape(64, -1)
    assert len({part.tobytes() for part in parts}) == 64
