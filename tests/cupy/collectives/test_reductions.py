"""ringar.cupy.allreduce and reducescatter against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ringar
from ringar.errors import MismatchError
from tests.collectives import common
from tests.cupy.collectives.common import FLOATING, REDUCIBLE, Dtype, Gpu, assert_close

pytestmark = pytest.mark.every_variant

SHAPES: list[tuple[int, ...]] = [(), (0,), (3, 0, 2), (1,), (7,), (5, 3, 7), (9000,)]
TAILS: list[tuple[int, ...]] = [(), (3,), (0,), (2, 1, 5)]


def ops_for(kind: str) -> list[ringar.ReduceOp]:
    return [op for op in common.OPS if op is not ringar.Average or kind in FLOATING]


@pytest.mark.parametrize("kind", REDUCIBLE)
def test_allreduce(gpu: Gpu, kind: str) -> None:
    dtype = Dtype(gpu, kind)
    for seed, shape in enumerate(SHAPES):
        inputs = common.of_all_ranks(dtype.name, shape, seed)
        array = dtype.put(inputs[ringar.rank()])
        for op in ops_for(kind):
            result = ringar.cupy.allreduce(array, op, **dtype.options)
            assert_close(dtype.get(result), common.reduced(op, inputs), (op, shape))
        common.assert_same(dtype.get(array), inputs[ringar.rank()], "the input")


@pytest.mark.parametrize("kind", REDUCIBLE)
def test_reducescatter(gpu: Gpu, kind: str) -> None:
    dtype, ranks = Dtype(gpu, kind), ringar.size()
    for seed, rows in enumerate((0, 1, ranks, 2 * ranks + 1, 50)):
        for tail in TAILS:
            inputs = common.of_all_ranks(dtype.name, (rows, *tail), seed)
            array = dtype.put(inputs[ringar.rank()])
            for op in ops_for(kind):
                result = ringar.cupy.reducescatter(array, op, **dtype.options)
                assert_close(
                    dtype.get(result), common.share(common.reduced(op, inputs)), (op, rows, tail)
                )


@pytest.mark.parametrize("kind", FLOATING)
def test_factors(gpu: Gpu, kind: str) -> None:
    dtype = Dtype(gpu, kind)
    inputs = common.of_all_ranks(dtype.name, (301,))
    array = dtype.put(inputs[ringar.rank()])
    for op in common.OPS:
        for before, after in [(0.5, 1.0), (1.0, 0.1), (-3.0, 1 / 3), (np.float32(2), np.int64(2))]:
            factors = {"prescale_factor": before, "postscale_factor": after}
            expected = common.reduced(op, inputs, float(before), float(after))
            if dtype.options and op not in (ringar.Sum, ringar.Average):
                with pytest.raises(ValueError, match=r"factors of 1.0.*Multiply before and after"):
                    ringar.cupy.allreduce(array, op, **factors, **dtype.options)
                continue
            result = ringar.cupy.allreduce(array, op, **factors, **dtype.options)
            assert_close(dtype.get(result), expected, (op, before, after))
            part = ringar.cupy.reducescatter(array, op, **factors, **dtype.options)
            assert_close(dtype.get(part), common.share(expected), (op, before, after))
    common.assert_same(dtype.get(array), inputs[ringar.rank()], "the input")


@pytest.mark.parametrize("op", [ringar.Sum, ringar.Max])
def test_factors_of_integers_are_refused_on_all_ranks(gpu: Gpu, op: ringar.ReduceOp) -> None:
    array = gpu.put(np.ones(3, np.int32))
    with pytest.raises(MismatchError, match="received int32, where the result would be cut off"):
        ringar.cupy.allreduce(array, op, prescale_factor=0.5)
    assert ringar.cupy.allreduce(array, ringar.Sum).get().tolist() == [ringar.size()] * 3


def test_average_of_integers_is_refused(gpu: Gpu) -> None:
    for function in (ringar.cupy.allreduce, ringar.cupy.reducescatter):
        with pytest.raises(ValueError, match=r"rank \d \| (?s:.)*Average.*received int32"):
            function(gpu.put(np.ones(3, np.int32)))
    with pytest.raises(ValueError, match="received uint16"):
        ringar.cupy.allreduce(gpu.put(np.ones(3, np.uint16)))


def mixed_group(rank: int) -> list[np.ndarray]:
    shapes: list[tuple[int, ...]] = [(5,), (0,), (3, 4), (1000,), (2, 0), (70, 90)]
    return [
        common.values(dtype, shape, 100 * rank + i)
        for i, shape in enumerate(shapes * 2)
        for dtype in ("float32", "int64", "float16", "float64", "uint8")
    ]


@pytest.mark.parametrize("op", [ringar.Sum, ringar.Min])
def test_groups_of_mixed_dtypes(gpu: Gpu, op: ringar.ReduceOp) -> None:
    groups = [mixed_group(r) for r in range(ringar.size())]
    inputs = [gpu.put(array) for array in groups[ringar.rank()]]
    results = ringar.cupy.grouped_allreduce(inputs, op)
    shares = ringar.cupy.grouped_reducescatter(inputs, op)
    assert len(results) == len(shares) == len(inputs)
    for arrays, result, part in zip(zip(*groups, strict=True), results, shares, strict=True):
        expected = common.reduced(op, arrays)
        assert_close(result.get(), expected)
        assert_close(part.get(), common.share(expected))


def test_floating_arrays_of_a_group_are_scaled_one_dtype_after_the_other(gpu: Gpu) -> None:
    dtypes = ("float32", "float16", "float64", "float32")
    groups = [[common.values(d, (9,), r) for d in dtypes] for r in range(ringar.size())]
    inputs = [gpu.put(array) for array in groups[ringar.rank()]]
    options: dict[str, Any] = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    results = ringar.cupy.grouped_allreduce(inputs, ringar.Max, **options)
    for arrays, result in zip(zip(*groups, strict=True), results, strict=True):
        assert_close(result.get(), common.reduced(ringar.Max, arrays, 0.5, 3.0))


def test_groups_of_none_and_of_many(gpu: Gpu) -> None:
    assert ringar.cupy.grouped_allreduce([]) == []
    assert ringar.cupy.grouped_reducescatter([]) == []
    ranks, rank = ringar.size(), ringar.rank()
    arrays = [gpu.put(np.full(i % 9, rank + i, np.float32)) for i in range(150)]
    for i, result in enumerate(ringar.cupy.grouped_allreduce(arrays, ringar.Sum)):
        total = ranks * i + ranks * (ranks - 1) // 2
        assert result.get().tolist() == [total] * (i % 9)


@pytest.mark.parametrize("op", [ringar.Average, ringar.Product])
def test_in_place_and_into_arrays_that_are_there(gpu: Gpu, op: ringar.ReduceOp) -> None:
    inputs = common.of_all_ranks("float32", (4, 5))
    values, rank = inputs[ringar.rank()], ringar.rank()
    options: dict[str, Any] = {"prescale_factor": 2.0, "postscale_factor": 0.5}
    expected = common.reduced(op, inputs, 2.0, 0.5)

    array = gpu.put(values)
    assert ringar.cupy.allreduce(array, op, out=array, **options) is array
    assert_close(array.get(), expected)

    array, other = gpu.put(values), gpu.put(np.zeros_like(values))
    assert ringar.cupy.allreduce(array, op, out=other, **options) is other
    assert_close(other.get(), expected)
    common.assert_same(array.get(), values)

    group, matrix = [gpu.put(values), gpu.put(values)], gpu.put(np.zeros((9, 5), np.float32))
    out = [group[0], matrix[2:6]]
    results = ringar.cupy.grouped_allreduce(group, op, out=out, **options)
    assert results[0] is out[0]
    assert results[1] is out[1]
    assert_close(out[0].get(), expected)
    assert_close(matrix.get(), np.pad(expected, [(2, 3), (0, 0)]))

    part = common.share(expected)
    out_part = gpu.put(np.zeros_like(part))
    assert ringar.cupy.reducescatter(array, op, out=out_part, **options) is out_part
    assert_close(out_part.get(), part, rank)
    several = [gpu.put(np.zeros_like(part)) for _ in range(2)]
    ringar.cupy.grouped_reducescatter([array, array], op, out=several, **options)
    for result in several:
        assert_close(result.get(), part)


def test_arrays_of_several_megabytes(gpu: Gpu) -> None:
    for dtype, count in (("float32", 1 << 20), ("float16", (1 << 20) + 13)):
        inputs = [np.resize(a, count) for a in common.of_all_ranks(dtype, (9_973,))]
        result = ringar.cupy.allreduce(gpu.put(inputs[ringar.rank()]))
        assert_close(result.get(), common.reduced(ringar.Average, inputs))


def test_algorithms(gpu: Gpu) -> None:
    array = gpu.put(np.ones(3, np.float32))
    for algorithm in (None, "auto", "hierarchical"):
        result = ringar.cupy.allreduce(array, ringar.Sum, algorithm=algorithm)
        assert result.get().tolist() == [ringar.size()] * 3
    with pytest.raises(MismatchError, match='expected algorithm="auto" or "hierarchical" for arr'):
        ringar.cupy.allreduce(array, algorithm="ring")
    with pytest.raises(ValueError, match=r"`algorithm` must be .* Received: algorithm='tree'"):
        ringar.cupy.grouped_allreduce([array], algorithm="tree")
