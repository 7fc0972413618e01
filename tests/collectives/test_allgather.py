"""All-gather against NumPy: every dtype, ranks with different numbers of rows, groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.collectives import common

TAILS: list[tuple[int, ...]] = [(), (3,), (0,), (2, 1, 5), (1, 2, 1, 2, 1, 2, 1, 2, 3)]


def rows_of(rank: int, case: int, mode: str) -> int:
    """How many rows a rank brings: 0 to 6, and some none; compiled code wants all alike."""
    return case % 4 if mode == "compiled" else (rank * 3 + case) % 7


def inputs_of(rank: int, dtype: str, mode: str, scale: int = 1) -> list[np.ndarray]:
    return [
        common.values(dtype, (scale * rows_of(rank, case, mode), *tail), 100 * rank + case)
        for case, tail in enumerate(TAILS * 3)
    ]


def gathered(groups: list[list[np.ndarray]]) -> list[np.ndarray]:
    return [np.concatenate(arrays) for arrays in zip(*groups, strict=True)]


@pytest.mark.every_variant
@common.modes_and_dtypes(common.MOVED)
def test_every_dtype(mode: str, dtype: str) -> None:
    groups = [inputs_of(r, dtype, mode) for r in range(ringar.size())]
    results = common.run(
        mode, lambda *ts: [ringar.allgather(t) for t in ts], *groups[ringar.rank()]
    )
    common.assert_all_same(results, gathered(groups))


def test_every_dtype_in_one_function(mode: str) -> None:
    groups = [
        [inputs_of(r, dtype, mode)[3] for dtype in common.MOVED] for r in range(ringar.size())
    ]
    results = common.run(
        mode, lambda *ts: [ringar.allgather(t) for t in ts], *groups[ringar.rank()]
    )
    for dtype, result, expected in zip(common.MOVED, results, gathered(groups), strict=True):
        common.assert_same(result, expected, dtype)


@common.modes_and_dtypes(["float32", "complex128", "int8"])
def test_groups(mode: str, dtype: str) -> None:
    """In one go, and longer than one send buffer."""
    groups = [inputs_of(r, dtype, mode, scale=3000) for r in range(ringar.size())]
    results = common.run(mode, lambda *ts: ringar.grouped_allgather(ts), *groups[ringar.rank()])
    common.assert_all_same(results, gathered(groups))


def test_group_of_mixed_dtypes(mode: str) -> None:
    groups = [
        [a for dtype in ("bool", "float64", "uint16") for a in inputs_of(r, dtype, mode)]
        for r in range(ringar.size())
    ]
    results = common.run(mode, lambda *ts: ringar.grouped_allgather(ts), *groups[ringar.rank()])
    common.assert_all_same(results, gathered(groups))
    assert ringar.grouped_allgather([]) == []


def test_lengths_around_the_send_buffer() -> None:
    """One rank alone brings much, the others little: every rank must take all steps."""
    ranks = ringar.size()
    buffer = ranks * common.SLICE_BYTES
    for length in (buffer - 65, buffer - 64, buffer - 63, 2 * buffer - 64, 3 * buffer):
        for giver in range(ranks):
            arrays = [
                common.values("uint8", (length if r == giver else 3 * r,), r) for r in range(ranks)
            ]
            result = ringar.allgather(arrays[ringar.rank()])
            common.assert_same(result, np.concatenate(arrays), (length, giver))


def test_one_graph_for_all_rows() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])
    def gather(tensor: tf.Tensor) -> tf.Tensor:
        result = ringar.allgather(tensor)
        assert result.shape.as_list() == [None, 3]
        return result

    for scale in (0, 1, 500):
        arrays = [common.values("float32", (scale * r, 3), r) for r in range(ringar.size())]
        result = gather(tf.constant(arrays[ringar.rank()]))
        common.assert_same(result.numpy(), np.concatenate(arrays))


def test_compiled_shape_is_known() -> None:
    @tf.function(jit_compile=True)
    def gather(tensor: tf.Tensor) -> Any:
        result = ringar.allgather(tensor)
        assert result.shape == (2 * ringar.size(), 3)
        return result

    assert gather(tf.ones([2, 3])).shape == (2 * ringar.size(), 3)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("rows", [[1, 2, 3, 2], [2, 2, 1, 3]])
def test_compiled_code_refuses_different_rows(rows: list[int]) -> None:
    """Also where the sum is what a rank expects: with 1, 2 and 3 rows, six are right for rank 1."""

    @tf.function(jit_compile=True)
    def gather(tensor: tf.Tensor) -> Any:
        return ringar.allgather(tensor, name="uneven")

    if len(set(rows[: ringar.size()])) == 1:
        rows = rows[::-1]
    with pytest.raises(tf.errors.OpError, match=r"rank \d \| allgather .uneven") as caught:
        gather(tf.ones([rows[ringar.rank()], 2]))
    assert "rows" in str(caught.value)
    common.assert_same(gather(tf.ones([1, 2])).numpy(), np.ones((ringar.size(), 2), np.float32))


@pytest.mark.slow
@pytest.mark.ranks(2)
@pytest.mark.deadline(400)
def test_more_than_two_gigabytes() -> None:
    half = (1 << 30) + 77
    result = ringar.allgather(np.full(half + ringar.rank(), ringar.rank() + 1, np.int8))
    assert result.shape == (2 * half + 1,)
    assert (result[:half] == 1).all()
    assert (result[half:] == 2).all()
