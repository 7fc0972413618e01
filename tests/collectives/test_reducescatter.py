"""Reduce-scatter against NumPy: rows that divide and rows that do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.collectives import common

Shape = tuple[int, ...]
SHAPES: list[Shape] = [(12,), (12, 0), (0,), (1,), (7, 3), (25, 2, 2), (2, 1000), (1030, 9)]


@pytest.mark.every_variant
@common.modes_and_dtypes(common.REDUCIBLE)
def test_every_op_and_shape(mode: str, dtype: str) -> None:
    common.check_reductions(mode, ringar.reducescatter, [dtype], SHAPES, common.share)


def test_every_dtype_and_op_in_one_function(mode: str) -> None:
    common.check_reductions(mode, ringar.reducescatter, common.REDUCIBLE, [(25, 2)], common.share)


def test_scaling(mode: str) -> None:
    inputs = [common.of_all_ranks(dtype, (31, 5)) for dtype in common.FLOATING]

    def reduce(*tensors: Any) -> list[Any]:
        factors: Any = {"prescale_factor": 0.3, "postscale_factor": -7.0}
        return [ringar.reducescatter(t, op, **factors) for t in tensors for op in common.OPS]

    results = common.run(mode, reduce, *[arrays[ringar.rank()] for arrays in inputs])
    cases = [(arrays, op) for arrays in inputs for op in common.OPS]
    for (arrays, op), result in zip(cases, results, strict=True):
        expected = common.share(common.reduced(op, arrays, 0.3, -7.0))
        common.assert_same(result, expected, (arrays[0].dtype, op))


def test_lengths_around_the_slice() -> None:
    ranks = ringar.size()
    for edge in (common.SLICE_BYTES, 2 * common.SLICE_BYTES, 5 * common.SLICE_BYTES // 2):
        for near in (-1, 0, 1, ranks):
            inputs = common.of_all_ranks("int32", (ranks * edge // 4 + near,))
            result = ringar.reducescatter(inputs[ringar.rank()], ringar.Sum)
            common.assert_same(
                result, common.share(common.reduced(ringar.Sum, inputs)), (edge, near)
            )


def test_group_of_mixed_dtypes(mode: str) -> None:
    groups = [
        [
            common.values(dtype, (rows, 50), 100 * r + rows)
            for rows in (0, 1, 5, 8, 300)
            for dtype in ("bfloat16", "int64", "float32")
        ]
        for r in range(ringar.size())
    ]
    results = common.run(
        mode, lambda *ts: ringar.grouped_reducescatter(ts, ringar.Sum), *groups[ringar.rank()]
    )
    expected = [common.share(common.reduced(ringar.Sum, a)) for a in zip(*groups, strict=True)]
    common.assert_all_same(results, expected)
    assert ringar.grouped_reducescatter([]) == []


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_compression(mode: str, name: str) -> None:
    """Inside one host nothing is narrowed: results are those without compression."""
    inputs = common.of_all_ranks("float32", (333,))
    results = common.run(
        mode,
        lambda t: [ringar.reducescatter(t, compression=getattr(ringar.Compression, name))],
        inputs[ringar.rank()],
    )
    common.assert_same(results[0], common.share(common.reduced(ringar.Average, inputs)))


def test_is_a_part_of_the_allreduce(mode: str) -> None:
    """Bit for bit, whichever way the library takes."""
    array = common.of_all_ranks("float32", (40_001,))[ringar.rank()]
    total, part = common.run(mode, lambda t: [ringar.allreduce(t), ringar.reducescatter(t)], array)
    common.assert_same(part, common.share(total))


def test_one_graph_for_all_rows() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])
    def reduce(tensor: tf.Tensor) -> tf.Tensor:
        result = ringar.reducescatter(tensor, ringar.Sum)
        assert result.shape.as_list() == [None, 3]
        return result

    for rows in (0, 5, 3000):
        inputs = common.of_all_ranks("float32", (rows, 3))
        result = reduce(tf.constant(inputs[ringar.rank()]))
        common.assert_same(result.numpy(), common.share(common.reduced(ringar.Sum, inputs)))


def test_average_of_integers_is_refused(mode: str) -> None:
    with pytest.raises(common.REFUSED, match=r"reducescatter(?s:.)*Average.*received uint8"):
        common.run(mode, lambda t: [ringar.reducescatter(t)], np.arange(4, dtype=np.uint8))
