"""Averages in which ranks count by their rows, in every dtype and in every way in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.collectives import compiled, shares
from ringar.collectives.compression import Compression
from ringar.collectives.shares import Control

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(1, 2, 3, 4)]

MODES: dict[str, Callable[[Any], Any]] = {
    "eager": lambda function: function,
    "graph": tf.function,
    "compiled": lambda function: tf.function(function, jit_compile=True),
    "as on a GPU": lambda function: tf.function(function, jit_compile=True),
}
BITS = {tf.bfloat16: 8, tf.float16: 11, tf.float32: 24, tf.float64: 53}
"""The digits of a number, by its dtype."""


def rows_of(rank: int) -> float:
    """More than float16 counts (65,504), and no number of bfloat16."""
    return 70_001.0 - 12_345 * rank


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", BITS, ids=lambda dtype: dtype.name)
def test_weights_are_exact_beside_narrow_gradients(
    mode: str, dtype: tf.DType, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode == "as on a GPU":
        monkeypatch.setattr(compiled, "is_for_gpu", compiled.is_compiling)
    gradients = [np.array([1500.0, -0.375, 3.0]) * (1 + r) for r in range(size)]
    rows = np.array([rows_of(r) for r in range(size)])
    expected = np.average(gradients, axis=0, weights=rows)

    shares.begin_training()
    rank = ringar.rank()
    result, numbers = MODES[mode](average)(
        tf.constant(gradients[rank], dtype), tf.constant(rows[rank], tf.float32)
    )
    assert result.dtype == dtype
    # A product, the terms of a sum and the sum are rounded.
    tolerance = (1 + size) * 2.0 ** -BITS[dtype] + 1e-6
    np.testing.assert_allclose(tf.cast(result, tf.float64), expected, rtol=tolerance)
    np.testing.assert_allclose(numbers[0], size * rows[rank] / rows.sum(), rtol=1e-6)
    assert numbers[1:].numpy().tolist() == [0, 0]


def average(gradient: tf.Tensor, number: Any) -> tuple[tf.Tensor, tf.Tensor]:
    results, numbers = shares.allreduce(
        [gradient], Control(number, key=5), ringar.Average, compression=Compression.none,
        algorithm=None, prescale_factor=1.0, postscale_factor=1.0, name="average", process_set=None,
    )  # fmt: skip
    return results[0], numbers


def values(dtype: tf.DType) -> tf.Tensor:
    """Gradients of this rank, whose products and sums are rounded."""
    return tf.cast(np.random.default_rng(ringar.rank()).normal(size=100), dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", BITS, ids=lambda dtype: dtype.name)
def test_equal_rows_give_the_bits_of_a_plain_average(
    mode: str, dtype: tf.DType, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode == "as on a GPU":
        monkeypatch.setattr(compiled, "is_for_gpu", compiled.is_compiling)
    shares.begin_training()
    result, numbers = MODES[mode](average)(values(dtype), tf.constant(257.0))
    plain = ringar.allreduce(values(dtype), ringar.Average)
    if mode == "as on a GPU" and dtype.size == 2 and size == 3:
        # Divided before the sum, since NCCL's third would be one of two bytes.
        tolerance = (1 + size) * 2.0 ** -BITS[dtype]
        terms = tf.cast(ringar.allreduce(tf.abs(values(dtype)), ringar.Average), tf.float64)
        error = tf.abs(tf.cast(result, tf.float64) - tf.cast(plain, tf.float64))
        assert (error <= tolerance * terms).numpy().all()
    else:
        np.testing.assert_array_equal(result.numpy(), plain.numpy())
    assert numbers.numpy().tolist() == [1, 0, 0]


@pytest.mark.parametrize("dtype", BITS, ids=lambda dtype: dtype.name)
def test_eager_graph_and_compiled_code_agree_bit_by_bit(dtype: tf.DType) -> None:
    results = []
    for mode in ("eager", "graph", "compiled"):
        shares.begin_training()
        number = tf.constant(rows_of(ringar.rank()), tf.float32)
        results.append(MODES[mode](average)(values(dtype), number))
    for result, numbers in results[1:]:
        np.testing.assert_array_equal(result.numpy(), results[0][0].numpy())
        np.testing.assert_array_equal(numbers.numpy(), results[0][1].numpy())


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16], ids=lambda dtype: dtype.name)
def test_a_weight_keeps_its_digits(dtype: tf.DType) -> None:
    weight = tf.constant(1.2227, tf.float32)
    product = shares.weighted(tf.constant([1000.0], dtype), weight)
    assert float(product[0]) == float(tf.cast(tf.constant(1222.7), dtype))
