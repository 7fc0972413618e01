"""ringar.cupy.allgather, broadcast and alltoall against NumPy, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import ringar
from tests.collectives import common
from tests.collectives.test_alltoall import TAILS, even, received_rows, splits_of
from tests.cupy.collectives.common import MOVED, Dtype, Gpu

pytestmark = pytest.mark.every_variant


def rows_of(rank: int, case: int) -> int:
    """Other ones on each rank, among them none."""
    return (5 * rank + 3 * case) % 7


@pytest.mark.parametrize("kind", MOVED)
def test_allgather(gpu: Gpu, kind: str) -> None:
    dtype = Dtype(gpu, kind)
    for case, tail in enumerate(TAILS * 2):
        equal = case < len(TAILS)
        rows = [4 if equal else rows_of(r, case) for r in range(ringar.size())]
        inputs = [common.values(dtype.name, (n, *tail), r) for r, n in enumerate(rows)]
        array = dtype.put(inputs[ringar.rank()])
        result = ringar.cupy.allgather(array, **dtype.options)
        common.assert_same(dtype.get(result), np.concatenate(inputs), (rows, tail))


def test_groups_are_gathered(gpu: Gpu) -> None:
    dtypes = ("float32", "int8", "float32", "bool", "complex64")
    groups = [
        [common.values(d, (rows_of(r, i), i), 10 * r + i) for i, d in enumerate(dtypes)]
        for r in range(ringar.size())
    ]
    results = ringar.cupy.grouped_allgather([gpu.put(a) for a in groups[ringar.rank()]])
    expected = [np.concatenate(arrays) for arrays in zip(*groups, strict=True)]
    common.assert_all_same([result.get() for result in results], expected)
    assert ringar.cupy.grouped_allgather([]) == []


@pytest.mark.parametrize("kind", MOVED)
def test_broadcast(gpu: Gpu, kind: str) -> None:
    dtype = Dtype(gpu, kind)
    for root in range(ringar.size()):
        for seed, shape in enumerate([(), (0,), (7,), (3, 5), (9000,)]):
            inputs = common.of_all_ranks(dtype.name, shape, seed)
            array = dtype.put(inputs[ringar.rank()])
            result = ringar.cupy.broadcast(array, root, **dtype.options)
            common.assert_same(dtype.get(result), inputs[root], (root, shape))
            common.assert_same(dtype.get(array), inputs[ringar.rank()], "the input")


def test_broadcast_in_place_and_into_arrays_that_are_there(gpu: Gpu) -> None:
    root, rank = ringar.size() - 1, ringar.rank()
    inputs = common.of_all_ranks("int16", (6, 2))
    array = gpu.put(inputs[rank])
    other = gpu.put(np.zeros_like(inputs[rank]))
    assert ringar.cupy.broadcast(array, root, out=other) is other
    common.assert_same(array.get(), inputs[rank])
    assert ringar.cupy.broadcast(array, root, out=array) is array
    for result in (array, other):
        common.assert_same(result.get(), inputs[root])

    groups = [[common.values(d, (4,), r) for d in ("int64", "bool")] for r in range(root + 1)]
    group = [gpu.put(a) for a in groups[rank]]
    ringar.cupy.grouped_broadcast(group, root, out=group)
    common.assert_all_same([a.get() for a in group], groups[root])
    assert ringar.cupy.grouped_broadcast([], root) == []


@pytest.mark.parametrize("kind", MOVED)
def test_alltoall(gpu: Gpu, kind: str) -> None:
    dtype, rank = Dtype(gpu, kind), ringar.rank()
    for case, tail in enumerate(TAILS):
        splits = [splits_of(r, case) for r in range(ringar.size())]
        inputs = [common.values(dtype.name, (sum(s), *tail), r) for r, s in enumerate(splits)]
        array = dtype.put(inputs[rank])
        rows, counts = ringar.cupy.alltoall(array, splits[rank], **dtype.options)
        common.assert_same(counts, np.array([s[rank] for s in splits], np.int64))
        common.assert_same(dtype.get(rows), received_rows(inputs, splits), (case, tail))

        rows = ringar.cupy.alltoall(array, **dtype.options)
        evenly = [even(sum(s)) for s in splits]
        common.assert_same(dtype.get(rows), received_rows(inputs, evenly), (case, tail))


def test_splits_of_every_kind(gpu: Gpu) -> None:
    ranks = ringar.size()
    array = gpu.put(np.arange(2 * ranks, dtype=np.float32))
    for splits in ([2] * ranks, np.full(ranks, 2, np.uint8), tuple([2] * ranks)):
        rows, counts = ringar.cupy.alltoall(array, splits)
        assert counts.tolist() == [2] * ranks
        assert rows.get().tolist() == [2 * ringar.rank(), 2 * ringar.rank() + 1] * ranks
    with pytest.raises(ValueError, match="splits of an integer dtype"):
        ringar.cupy.alltoall(array, [0.5] * ranks)  # type: ignore[list-item]


def test_long_and_uneven(gpu: Gpu) -> None:
    ranks, rank = ringar.size(), ringar.rank()
    splits = [[30 * (r + 1) * (to + 1) for to in range(ranks)] for r in range(ranks)]
    splits[0][-1] = 200_000
    inputs = [common.values("int32", (sum(s), 2), r) for r, s in enumerate(splits)]
    rows, counts = ringar.cupy.alltoall(gpu.put(inputs[rank]), splits[rank])
    common.assert_same(rows.get(), received_rows(inputs, splits))
    assert counts.tolist() == [s[rank] for s in splits]
    gathered = ringar.cupy.allgather(gpu.put(inputs[rank]))
    common.assert_same(gathered.get(), np.concatenate(inputs))
