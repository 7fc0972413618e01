"""Adasum against the formula of the paper, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

import ringar.horovod.tensorflow as hvd
from ringar.horovod.common.process_sets import ProcessSet

pytestmark = pytest.mark.usefixtures("initialized")


def pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Equation 8 of Maleki et al. 2021."""
    dot, of_a, of_b = (float(np.vdot(p, q)) for p, q in ((a, b), (a, a), (b, b)))
    return (1 - dot / (2 * of_a)) * a + (1 - dot / (2 * of_b)) * b


def tree(vectors: Sequence[np.ndarray]) -> np.ndarray:
    """The binary tree over the ranks."""
    while len(vectors) > 1:
        pairs = [pair(*vectors[i : i + 2]) for i in range(0, len(vectors) - 1, 2)]
        vectors = [*pairs, *vectors[2 * len(pairs) :]]
    return vectors[0]


def gradients(shape: Sequence[int], dtype: str, seed: int = 0) -> list[np.ndarray]:
    """One for each rank, with something in common."""
    common = np.random.default_rng([seed, 99]).normal(size=shape)
    return [
        (common + np.random.default_rng([seed, rank]).normal(size=shape)).astype(dtype)
        for rank in range(hvd.size())
    ]


TOLERANCES = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}


@pytest.mark.parametrize("way", ["eager", "function", "compiled"])
def test_the_formula_holds_for_each_tensor(way: str) -> None:
    shapes = {"float32": (5,), "float16": (3, 7), "float64": (2, 3, 4)}
    if way != "eager":
        del shapes["float16"], shapes["float64"]
    gradients_by_dtype = {dtype: gradients(shape, dtype) for dtype, shape in shapes.items()}
    small = gradients((1,), "float32", 1)  # fewer elements than ranks

    def reduce(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        return list(hvd.grouped_allreduce(tensors, op=hvd.Adasum))

    run = reduce if way == "eager" else tf.function(reduce, jit_compile=way == "compiled")
    inputs = [
        tf.constant(of_ranks[hvd.rank()]) for of_ranks in [*gradients_by_dtype.values(), small]
    ]
    results = run(inputs)
    for result, of_ranks in zip(results, [*gradients_by_dtype.values(), small], strict=True):
        expected = tree([gradient.astype(np.float64) for gradient in of_ranks])
        assert result.dtype == of_ranks[0].dtype.name
        tolerance = TOLERANCES[result.dtype.name]
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


def test_parallel_gradients_are_averaged_and_orthogonal_ones_added() -> None:
    same = hvd.allreduce(tf.constant([3.0, 4.0]), op=hvd.Adasum)
    np.testing.assert_allclose(same, [3.0, 4.0], rtol=1e-6)
    unit = np.eye(hvd.size(), dtype=np.float32)
    apart = hvd.allreduce(tf.constant(unit[hvd.rank()]), op=hvd.Adasum)
    np.testing.assert_allclose(apart, np.ones(hvd.size()), rtol=1e-6)


def test_zeros_add_nothing() -> None:
    tensor = tf.constant([2.0, 0.0]) if hvd.rank() == 0 else tf.zeros(2)
    np.testing.assert_array_equal(hvd.allreduce(tensor, op=hvd.Adasum), [2.0, 0.0])


def test_all_ranks_have_the_same_bits() -> None:
    result = hvd.allreduce(tf.constant(gradients((1000,), "float32")[hvd.rank()]), op=hvd.Adasum)
    of_ranks = hvd.allgather_object(result.numpy().tobytes())
    assert len(set(of_ranks)) == 1


def test_factors_compression_and_integers() -> None:
    of_ranks = gradients((9,), "float32")
    expected = tree([gradient.astype(np.float64) for gradient in of_ranks])
    scaled = hvd.allreduce(
        tf.constant(of_ranks[hvd.rank()]), op=hvd.Adasum, prescale_factor=2.0, postscale_factor=3.0
    )
    np.testing.assert_allclose(scaled, 6 * expected, rtol=1e-5, atol=1e-5)
    compressed_sum = hvd.allreduce(
        tf.constant(of_ranks[hvd.rank()]), op=hvd.Adasum, compression=hvd.Compression.fp16
    )
    assert compressed_sum.dtype == tf.float32
    np.testing.assert_allclose(compressed_sum, expected, rtol=1e-2, atol=1e-2)
    with pytest.raises(ValueError, match="expected floating tensors"):
        hvd.allreduce(tf.constant([1]), op=hvd.Adasum)


@pytest.mark.ranks(3, 4)
def test_of_a_process_set() -> None:
    two = hvd.add_process_set(ProcessSet([2, 0]))
    if two.included():
        of_ranks = gradients((4,), "float64")
        result = hvd.allreduce(tf.constant(of_ranks[hvd.rank()]), op=hvd.Adasum, process_set=two)
        np.testing.assert_allclose(result, pair(of_ranks[0], of_ranks[2]), rtol=1e-12)
    hvd.remove_process_set(two)


def test_of_a_tape() -> None:
    variables = [tf.Variable(tf.ones([2, 2])), tf.Variable(tf.ones([3]))]
    slopes = [gradients((2, 2), "float32"), gradients((3,), "float32", 1)]
    with tf.GradientTape() as plain:
        loss = sum(tf.reduce_sum(v * g[hvd.rank()]) for v, g in zip(variables, slopes, strict=True))
    tape = hvd.DistributedGradientTape(plain, op=hvd.Adasum)
    for result, of_ranks in zip(tape.gradient(loss, variables), slopes, strict=True):
        expected = tree([slope.astype(np.float64) for slope in of_ranks])
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
