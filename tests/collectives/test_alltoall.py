"""All-to-all against NumPy: every dtype, with splits and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.collectives import common

TAILS: list[tuple[int, ...]] = [(), (3,), (0,), (2, 1, 5)]


def splits_of(rank: int, case: int) -> list[int]:
    """The rows that `rank` sends to each rank, among them none."""
    return [(3 * rank + 5 * to + case) % 4 for to in range(ringar.size())]


def part_for(array: np.ndarray, splits: list[int], to: int) -> np.ndarray:
    begin = sum(splits[:to])
    return array[begin : begin + splits[to]]


def even(rows: int) -> list[int]:
    return [rows // ringar.size() + (r < rows % ringar.size()) for r in range(ringar.size())]


def received_rows(arrays: list[np.ndarray], splits: list[list[int]]) -> np.ndarray:
    """The rows that this rank receives from all ranks."""
    rank = ringar.rank()
    return np.concatenate([part_for(a, s, rank) for a, s in zip(arrays, splits, strict=True)])


@pytest.mark.every_variant
@common.modes_and_dtypes(common.MOVED, modes=("numpy", "eager", "graph"))
def test_every_dtype_with_splits(mode: str, dtype: str) -> None:
    """Compiled code has static shapes and no splits: see test_compiled_code_refuses_splits."""
    for case, tail in enumerate(TAILS):
        splits = [splits_of(r, case) for r in range(ringar.size())]
        arrays = [common.values(dtype, (sum(split), *tail), r) for r, split in enumerate(splits)]
        row_counts = splits[ringar.rank()]
        result, counts = common.run(
            mode,
            lambda t, row_counts=row_counts: ringar.alltoall(t, row_counts),
            arrays[ringar.rank()],
        )
        common.assert_same(result, received_rows(arrays, splits), (case, tail))
        common.assert_same(counts, np.array([s[ringar.rank()] for s in splits], np.int64))


@pytest.mark.parametrize("way", ["numpy", "eager", "graph"])
def test_every_dtype_with_splits_in_one_function(way: str) -> None:
    splits = [splits_of(r, 0) for r in range(ringar.size())]
    row_counts, rank = splits[ringar.rank()], ringar.rank()
    inputs = [
        [common.values(dtype, (sum(split), 3), r) for r, split in enumerate(splits)]
        for dtype in common.MOVED
    ]
    results = common.run(
        way,
        lambda *ts: [ringar.alltoall(t, row_counts)[0] for t in ts],
        *[arrays[rank] for arrays in inputs],
    )
    for dtype, arrays, result in zip(common.MOVED, inputs, results, strict=True):
        common.assert_same(result, received_rows(arrays, splits), dtype)


def test_every_dtype_in_one_function(mode: str) -> None:
    ranks = ringar.size()
    inputs = [common.of_all_ranks(dtype, (2 * ranks, 3)) for dtype in common.MOVED]
    results = common.run(
        mode,
        lambda *ts: [ringar.alltoall(t) for t in ts],
        *[arrays[ringar.rank()] for arrays in inputs],
    )
    for dtype, arrays, result in zip(common.MOVED, inputs, results, strict=True):
        common.assert_same(result, received_rows(arrays, [even(2 * ranks)] * ranks), dtype)


@pytest.mark.every_variant
@common.modes_and_dtypes(common.MOVED)
def test_every_dtype_evenly(mode: str, dtype: str) -> None:
    ranks = ringar.size()
    cases = [(rows, tail) for rows in (0, 1, 2, 50) for tail in TAILS]
    inputs = [common.of_all_ranks(dtype, (rows * ranks, *tail)) for rows, tail in cases]
    results = common.run(
        mode,
        lambda *ts: [ringar.alltoall(t) for t in ts],
        *[arrays[ringar.rank()] for arrays in inputs],
    )
    for (rows, tail), arrays, result in zip(cases, inputs, results, strict=True):
        common.assert_same(
            result, received_rows(arrays, [even(rows * ranks)] * ranks), (rows, tail)
        )


@pytest.mark.parametrize("way", ["numpy", "eager", "graph"])
def test_rows_that_do_not_divide(way: str) -> None:
    ranks = ringar.size()
    rows = [2 * ranks + 1 + r for r in range(ranks)]
    arrays = [common.values("float32", (n, 3), n) for n in rows]
    result = common.run(way, lambda t: [ringar.alltoall(t)], arrays[ringar.rank()])[0]
    common.assert_same(result, received_rows(arrays, [even(n) for n in rows]))


@pytest.mark.parametrize("way", ["numpy", "eager", "graph"])
def test_long_and_uneven(way: str) -> None:
    """Rank 0 sends much to the last rank; the others little: all take as many steps."""
    ranks, rank = ringar.size(), ringar.rank()
    splits = [[300 * (r + 1) * (to + 1) for to in range(ranks)] for r in range(ranks)]
    splits[0][-1] = 200_000
    arrays = [common.values("int32", (sum(s), 2), r) for r, s in enumerate(splits)]
    result, _ = common.run(way, lambda t: ringar.alltoall(t, splits[rank]), arrays[rank])
    common.assert_same(result, received_rows(arrays, splits))


def test_lengths_around_the_compartment() -> None:
    ranks, rank = ringar.size(), ringar.rank()
    room = (ranks * common.SLICE_BYTES - 64) // ranks // 64 * 64
    for length in (room - 1, room, room + 1, 2 * room):
        arrays = common.of_all_ranks("uint8", (ranks * length,))
        received = ringar.alltoall(arrays[rank])
        common.assert_same(received, received_rows(arrays, [even(ranks * length)] * ranks), length)


@pytest.mark.parametrize("kind", ["list", "int32", "int64", "numpy"])
def test_kinds_of_splits(kind: str) -> None:
    ranks = ringar.size()
    splits: Any = list(range(1, ranks + 1))
    tensor = tf.range(sum(splits))
    if kind == "numpy":
        splits = np.array(splits)
    elif kind != "list":
        splits = tf.constant(splits, kind)
    received, counts = ringar.alltoall(tensor, splits)
    rank = ringar.rank()  # which gets rank + 1 rows of everybody
    expected = list(range(sum(splits)))[rank * (rank + 1) // 2 :][: rank + 1]
    assert received.numpy().tolist() == expected * ranks
    assert counts.numpy().tolist() == [rank + 1] * ranks
    assert counts.dtype == tf.int64


def test_splits_of_a_graph_are_data() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int64)])
    def send(tensor: tf.Tensor, splits: tf.Tensor) -> Any:
        return ringar.alltoall(tensor, splits)

    ranks, rank = ringar.size(), ringar.rank()
    for turn in range(ranks):  # all to one
        splits = np.zeros(ranks, np.int64)
        splits[turn] = 4
        received, counts = send(tf.fill([4], rank), splits)
        expected = [r for r in range(ranks) for _ in range(4)] if turn == rank else []
        assert received.numpy().tolist() == expected
        assert counts.numpy().tolist() == ([4] * ranks if turn == rank else [0] * ranks)


def test_compiled_code_refuses_splits() -> None:
    ranks = ringar.size()
    with pytest.raises(
        ringar.errors.UnsupportedError, match=r"rank \d \| alltoall.*no splits.*out of jit_compile"
    ):
        common.run("compiled", lambda t: ringar.alltoall(t, [1] * ranks), np.zeros(ranks))


@pytest.mark.ranks(2, 3, 4)
def test_compiled_code_refuses_rows_that_do_not_divide() -> None:
    with pytest.raises(ringar.errors.UnsupportedError, match=r"number of ranks .*divides"):
        common.run("compiled", lambda t: [ringar.alltoall(t)], np.zeros(ringar.size() + 1))
