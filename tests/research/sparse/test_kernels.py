"""The native kernels against SciPy, for many widths of the batch, and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ringar.parallel import sparse
from ringar.research.sparse.kernels import Product
from ringar.research.sparse.plan import LayerPlan, Pattern, plans
from tests.comparison import assert_all_close
from tests.plugin import fast_if

pytestmark = pytest.mark.ranks(1)

PART = 1
SLOW = (0, 2, 7, 15, 31, 65, 200, 300)


def part(units: int = 37) -> tuple[LayerPlan, Pattern]:
    layers = sparse.erdos_renyi([53, 53, units], 6, seed=4)
    return list(plans(layers, sparse.partition(layers, 3, "random"), PART))[1]


def tensors(problem: tuple[LayerPlan, Pattern], batch: int, dtype: str) -> list[tf.Tensor]:
    rng, (plan, _) = np.random.default_rng(batch), problem
    shapes = [
        (len(plan.entries_of(PART)),),
        (len(plan.neurons),),
        (plan.own_inputs, batch),
        (plan.ghosts, batch),
    ]
    return [tf.constant(rng.normal(size=shape), dtype) for shape in shapes]


def results(
    problem: tuple[LayerPlan, Pattern],
    inputs: list[tf.Tensor],
    kernel: str,
    differentiates: bool,
    threads: int,
) -> list[np.ndarray]:
    product = Product(*problem, differentiates, kernel, threads)

    @tf.function
    def run(*inputs: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = product(*inputs)
            loss = tf.reduce_sum(outputs**2)
        slopes = tape.gradient(loss, inputs)
        return [outputs, *(gradient for gradient in slopes if gradient is not None)]

    return [np.asarray(value) for value in run(*inputs)]


@pytest.mark.parametrize("dtype", ["float32", fast_if(False, "float64")])
@pytest.mark.parametrize("batch", [1, 3, 16, 37, 128, *(fast_if(False, b) for b in SLOW)])
def test_native_equals_scipy(batch: int, dtype: str) -> None:
    problem = part()
    inputs = tensors(problem, batch, dtype)
    for differentiates, threads in ((True, 1), (False, 3)):
        native, scipy = (
            results(problem, inputs, kernel, differentiates, threads)
            for kernel in ("native", "scipy")
        )
        assert len(native) == len(scipy) == (5 if differentiates else 3)
        tolerance = 1e-4 if dtype == "float32" else 1e-12
        assert_all_close(native, scipy, rtol=tolerance, atol=tolerance)


def test_gradients_are_finite_differences() -> None:
    problem = part(units=9)
    inputs = tensors(problem, 3, "float64")
    product = Product(*problem, True, "native", 1)
    theoretical, numerical = tf.test.compute_gradient(lambda *a: product(*a), inputs, delta=1e-4)
    assert_all_close(theoretical, numerical, atol=1e-8)


def test_without_biases() -> None:
    problem = part()
    values, bias, inputs, ghosts = tensors(problem, 5, "float32")
    product = Product(*problem, True, "native", 1)
    with_zeros = product(values, tf.zeros_like(bias), inputs, ghosts)
    np.testing.assert_array_equal(product(values, None, inputs, ghosts), with_zeros)
