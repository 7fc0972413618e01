"""Broadcast against NumPy: every dtype and root, groups, variables."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.collectives import common

SHAPES: list[tuple[int, ...]] = [(), (0,), (3, 0, 2), (1,), (7,), (5, 3, 7), (1023,), (40_000,)]


@pytest.mark.every_variant
@common.modes_and_dtypes(common.MOVED)
def test_every_dtype_root_and_shape(mode: str, dtype: str) -> None:
    cases = [(root, shape) for root in range(ringar.size()) for shape in SHAPES]
    inputs = [common.of_all_ranks(dtype, shape, i) for i, (_, shape) in enumerate(cases)]
    results = common.run(
        mode,
        lambda *ts: [ringar.broadcast(t, root) for t, (root, _) in zip(ts, cases, strict=True)],
        *[arrays[ringar.rank()] for arrays in inputs],
    )
    expected = [arrays[root] for arrays, (root, _) in zip(inputs, cases, strict=True)]
    common.assert_all_same(results, expected)


def test_every_dtype_in_one_function(mode: str) -> None:
    inputs = [common.of_all_ranks(dtype, (5, 3)) for dtype in common.MOVED]
    root = ringar.size() - 1
    results = common.run(
        mode,
        lambda *ts: [ringar.broadcast(t, root) for t in ts],
        *[arrays[ringar.rank()] for arrays in inputs],
    )
    for dtype, arrays, result in zip(common.MOVED, inputs, results, strict=True):
        common.assert_same(result, arrays[root], dtype)


def test_lengths_around_the_send_buffer() -> None:
    buffer = ringar.size() * common.SLICE_BYTES
    root = ringar.size() - 1
    for length in (buffer - 1, buffer, buffer + 1, 2 * buffer, 5 * buffer // 2):
        inputs = common.of_all_ranks("uint8", (length,))
        common.assert_same(ringar.broadcast(inputs[ringar.rank()], root), inputs[root], length)


def test_group_of_mixed_dtypes(mode: str) -> None:
    groups = [
        [
            common.values(dtype, shape, 100 * r + i)
            for i, shape in enumerate(SHAPES)
            for dtype in ("bool", "complex64", "float32")
        ]
        for r in range(ringar.size())
    ]
    root = ringar.size() // 2
    results = common.run(
        mode, lambda *ts: ringar.grouped_broadcast(ts, root), *groups[ringar.rank()]
    )
    common.assert_all_same(results, groups[root])
    assert ringar.grouped_broadcast([]) == []


def test_bits_are_kept() -> None:
    """NaNs with a payload, negative zeros: a broadcast moves bytes."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 5000, np.uint32) | np.uint32(0x7F800001)
    floats = bits.view(np.float32)
    received = ringar.broadcast(floats if ringar.rank() == 0 else np.zeros_like(floats), 0)
    assert received.tobytes() == floats.tobytes()


def test_variables() -> None:
    rank, root = ringar.rank(), ringar.size() - 1
    shapes: list[tuple[int, ...]] = [(), (3, 2), (0,), (1000,)]
    arrays = [
        [
            common.values(dtype, s, 10 * r + i)
            for dtype in common.MOVED
            for i, s in enumerate(shapes)
        ]
        for r in (rank, root)
    ]
    variables = [tf.Variable(array) for array in arrays[0]]
    handles = [v.handle for v in variables]
    ringar.broadcast_variables(variables, root)
    common.assert_all_same([v.numpy() for v in variables], arrays[1])
    assert all(v.handle is handle for v, handle in zip(variables, handles, strict=True))


def test_keras_variables() -> None:
    keras.utils.set_random_seed(ringar.rank())
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dropout(0.5)])
    weights = model.get_weights()
    ringar.broadcast_variables(model.variables, 0)
    keras.utils.set_random_seed(0)
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dropout(0.5)])
    common.assert_all_same(model.get_weights(), other.get_weights())
    assert ringar.rank() == 0 or not np.array_equal(weights[0], other.get_weights()[0])


def test_variables_inside_a_function() -> None:
    variable = tf.Variable(tf.fill([3], float(ringar.rank() + 5)))

    @tf.function
    def synchronize() -> None:
        ringar.broadcast_variables([variable], ringar.size() - 1)

    synchronize()
    common.assert_same(variable.numpy(), np.full(3, ringar.size() + 4, np.float32))


def test_no_variables() -> None:
    ringar.broadcast_variables([], 0)
