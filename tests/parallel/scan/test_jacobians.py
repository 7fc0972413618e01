"""Each Jacobian against TensorFlow's, entry by entry."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringar.parallel.scan import jacobians
from ringar.parallel.scan.sparse import multiplications, repeat, scipy_sparse
from ringar.parallel.scan.stages import Chain
from tests.plugin import fast_if

pytestmark = [pytest.mark.ranks(1)]

layers = keras.layers

#: Layers, and the shape of an example before them.
CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "dense": (lambda **k: layers.Dense(4, **k), (6,)),
    "dense on rank 3": (lambda **k: layers.Dense(4, **k), (3, 5)),
    "dense on rank 4": (lambda **k: layers.Dense(2, use_bias=False, **k), (2, 3, 4)),
    "convolution": (lambda **k: layers.Conv2D(3, 3, **k), (6, 5, 2)),
    "same": (lambda **k: layers.Conv2D(3, 3, padding="same", **k), (6, 5, 2)),
    "1 x 1": (lambda **k: layers.Conv2D(4, 1, **k), (3, 4, 2)),
    "even kernel, same": (lambda **k: layers.Conv2D(2, (4, 2), padding="same", **k), (5, 6, 2)),
    "strides": (lambda **k: layers.Conv2D(3, 3, strides=(2, 3), **k), (8, 7, 2)),
    "strides, same": (lambda **k: layers.Conv2D(2, 3, strides=2, padding="same", **k), (7, 6, 2)),
    "strides above the kernel": (lambda **k: layers.Conv2D(2, 1, strides=2, **k), (5, 5, 2)),
    "dilation": (lambda **k: layers.Conv2D(2, 3, dilation_rate=2, **k), (8, 7, 2)),
    "dilation, same": (
        lambda **k: layers.Conv2D(2, (3, 2), dilation_rate=(1, 2), padding="same", **k), (5, 6, 2),
    ),
    "groups": (lambda **k: layers.Conv2D(6, 3, groups=2, padding="same", **k), (4, 5, 4)),
    "wide kernel": (lambda **k: layers.Conv2D(2, 5, padding="same", **k), (3, 3, 1)),
    "max-pooling": (lambda **k: layers.MaxPooling2D(**k), (6, 4, 3)),
    "odd size": (lambda **k: layers.MaxPooling2D(2, **k), (5, 7, 2)),
    "odd size, same": (lambda **k: layers.MaxPooling2D(2, padding="same", **k), (5, 7, 2)),
    "overlapping": (lambda **k: layers.MaxPooling2D(3, 2, **k), (7, 7, 2)),
    "overlapping, same": (
        lambda **k: layers.MaxPooling2D((3, 2), 1, padding="same", **k), (4, 5, 2),
    ),
    "flatten": (lambda **k: layers.Flatten(**k), (2, 3, 2)),
    "reshape": (lambda **k: layers.Reshape((6, 2), **k), (2, 3, 2)),
}  # fmt: skip


def built(make: Any, shape: tuple[int, ...], **options: Any) -> Any:
    layer = make(**options)
    layer.build((None, *shape))
    for number, weight in enumerate(layer.weights):
        weight.assign(np.random.default_rng(number).normal(size=weight.shape))
    return layer


def of_tensorflow(function: Any, inputs: np.ndarray) -> np.ndarray:
    """The transposed Jacobians of a batch, (batch, n, m)."""
    x = tf.constant(inputs)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = function(x)
    jacobian = tape.batch_jacobian(y, x, experimental_use_pfor=False).numpy()
    return jacobian.reshape(len(inputs), math.prod(y.shape[1:]), -1).transpose(0, 2, 1)


def of_stage(layer: Any, inputs: np.ndarray) -> tuple[np.ndarray, Any]:
    """The same of the only stage of a layer, which is not the last one; and the stage."""
    after = layers.Activation("linear", dtype=layer.dtype)
    chain = Chain.of([layer, after], inputs.shape[1:])
    (stage,) = chain.stages
    _, record = stage.run(tf.constant(inputs), False)
    element = stage.element(None if record is None else np.asarray(record))
    matrix = element.matrix
    assert isinstance(matrix, scipy_sparse().csr_array)
    assert matrix.has_sorted_indices
    assert matrix.copy().sorted_indices().has_canonical_format
    jacobian = (matrix if element.per_example else repeat(matrix, len(inputs))).toarray()
    blocks = jacobian.reshape(len(inputs), stage.shape[0], len(inputs), stage.shape[1])
    diagonal = np.stack([blocks[i, :, i] for i in range(len(inputs))])
    assert np.count_nonzero(jacobian) == np.count_nonzero(diagonal), "not block-diagonal"
    return diagonal, stage


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        fast_if(dtype == "float64" or case in ("dense", "same", "max-pooling"), case, dtype)
        for case in CASES
        for dtype in ("float32", "float64")
    ],
)
def test_layers(case: str, dtype: str) -> None:
    make, shape = CASES[case]
    layer = built(make, shape, dtype=dtype)
    inputs = np.random.default_rng(1).normal(size=(3, *shape)).astype(dtype)
    jacobian, stage = of_stage(layer, inputs)
    assert jacobian.dtype == dtype
    expected = of_tensorflow(layer, inputs)
    np.testing.assert_allclose(
        jacobian, expected, rtol=0, atol=1e-6 if dtype == "float32" else 1e-14
    )
    # Weights are not zero, and every number is the largest of its window for some input.
    if stage.kind in ("convolution", "dense", "identity"):
        assert stage.entries == np.count_nonzero(expected[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["ReLU layer", "relu", "tanh", "sigmoid"])
def test_activations(name: str, dtype: str) -> None:
    layer = layers.ReLU(dtype=dtype) if " " in name else layers.Activation(name, dtype=dtype)
    inputs = np.random.default_rng(1).normal(size=(3, 4, 2)).astype(dtype)
    inputs[0, 0] = 0
    jacobian, stage = of_stage(layer, inputs)
    expected = of_tensorflow(layer, inputs)
    np.testing.assert_allclose(
        jacobian, expected, rtol=0, atol=1e-6 if dtype == "float32" else 1e-14
    )
    assert stage.entries == 8


@pytest.mark.parametrize(
    ("pool", "strides", "padding"),
    [(2, 2, "valid"), (3, 1, "same"), (3, 2, "same"), ((2, 3), 1, "valid")],
)
def test_equal_numbers_in_a_window(pool: Any, strides: int, padding: str) -> None:
    """After a ReLU most windows have several zeros, and the first one gets the gradient."""
    inputs = np.random.default_rng(2).integers(0, 2, size=(4, 7, 6, 3)).astype(np.float32)
    inputs[0] = 0
    layer = layers.MaxPooling2D(pool, strides, padding)
    np.testing.assert_array_equal(of_stage(layer, inputs)[0], of_tensorflow(layer, inputs))
    inputs = -1 - inputs  # padding is no number of the window
    np.testing.assert_array_equal(of_stage(layer, inputs)[0], of_tensorflow(layer, inputs))


@pytest.mark.parametrize("strides", [1, 2])
def test_windows_without_finite_numbers(strides: int) -> None:
    """Padding never gets a gradient."""
    inputs = np.full((1, 3, 3, 1), -np.inf, np.float32)
    for pool in (2, 3):
        matrix = jacobians.MaxPooling((3, 3, 1), (pool, pool), (strides,) * 2, "same")
        assert set(matrix.transposed(inputs).sum(axis=0).tolist()) == {1}


def test_dropout() -> None:
    layer = layers.Dropout(0.5, seed=3)
    chain = Chain.of([layer, layers.Activation("linear")], (50,))
    x = np.random.default_rng(0).normal(size=(2, 50)).astype(np.float32)
    y, mask = chain.stages[0].run(tf.constant(x), True)
    matrix = chain.stages[0].element(mask.numpy()).matrix
    assert 20 < matrix.nnz < 80
    np.testing.assert_allclose(matrix @ x.ravel(), np.ravel(y))
    twin = layers.Dropout(0.5, seed=3)
    np.testing.assert_array_equal(twin(x, training=True), y)


def test_zero_weights_are_left_out() -> None:
    random = np.random.default_rng(0)
    kernel = random.normal(size=(3, 3, 2, 4)).astype(np.float32)
    kernel[random.random(kernel.shape) < 0.9] = 0
    pattern = jacobians.Convolution((5, 6, 2), kernel.shape, padding="same")
    full, pruned = (pattern.transposed(kernel, prune=prune) for prune in (False, True))
    assert full.nnz == pattern.entries
    assert pruned.nnz == np.count_nonzero(full.toarray()) < pattern.entries / 5
    np.testing.assert_array_equal(full.toarray(), pruned.toarray())
    assert pattern.transposed(kernel).nnz == pruned.nnz
    assert pattern.transposed(np.ones_like(kernel)).nnz == full.nnz
    matrix = kernel.reshape(18, 4)
    for copies in (1, 3):
        pruned_matrix, full_matrix = (
            jacobians.dense(matrix, copies, prune=prune) for prune in (True, False)
        )
        assert (pruned_matrix.nnz, full_matrix.nnz) == (
            copies * np.count_nonzero(matrix),
            copies * matrix.size,
        )
        np.testing.assert_array_equal(pruned_matrix.toarray(), full_matrix.toarray())
        assert jacobians.dense(matrix, copies).nnz == pruned_matrix.nnz


def test_places_are_found_once() -> None:
    pattern = jacobians.Convolution((5, 6, 2), (3, 3, 2, 4))
    calls = []
    find = pattern._places
    pattern._places = lambda *arguments: calls.append(1) or find(*arguments)  # type: ignore[method-assign,func-returns-value]
    kernel = np.random.default_rng(0).normal(size=(3, 3, 2, 4))
    first, second = pattern.transposed(kernel), pattern.transposed(2 * kernel)
    assert len(calls) == 1
    np.testing.assert_array_equal(2 * first.toarray(), second.toarray())
    kernel[1:] = 0
    for factor in (1, 2):
        assert pattern.transposed(factor * kernel).nnz == first.nnz / 3
    assert len(calls) == 2
    kernel[0], kernel[1] = 0, 1
    matrix = pattern.transposed(kernel)
    assert len(calls) == 3
    np.testing.assert_array_equal(
        matrix.toarray(), pattern.transposed(kernel, prune=False).toarray()
    )


def test_a_kernel_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"`kernel` must be of shape \(3, 3, 2, 4\)"):
        jacobians.Convolution((5, 6, 2), (3, 3, 2, 4)).transposed(np.ones((3, 3, 4, 2)))


def test_multiplications_are_counted() -> None:
    random = np.random.default_rng(0)
    left, right = (
        scipy_sparse().csr_array((random.random(shape) < 0.3).astype(float))
        for shape in ((7, 9), (9, 5))
    )
    expected = int((left @ (right != 0).astype(int)).sum())
    assert multiplications(left, right) == expected == (left @ right).sum()
