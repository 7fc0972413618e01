"""The scan of dense matrices is the serial product, and its gradient a scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ringar.parallel import scan as package
from tests.comparison import assert_all_close

pytestmark = [pytest.mark.ranks(1)]

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
WAYS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda function: function,
    "graph": tf.function,
    "compiled": tf.function(jit_compile=True),
}

#: Length, size and batch; every length, size and batch that the scan treats in its own way.
SHAPES = [
    (1, 1, 1), (2, 2, 3), (3, 3, 64), (7, 20, 16), (31, 5, 2), (32, 4, 1), (33, 64, 5),
    (64, 16, 17), (100, 33, 3), (129, 1, 64), (1000, 8, 4), (4096, 2, 2), (4097, 3, 1),
]  # fmt: skip


def orthogonal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(*shape, shape[-1])))[0]


def random_chain(
    length: int, size: int, batch: int, dtype: str = "float64", adds: bool = False
) -> list[np.ndarray]:
    rng = np.random.default_rng(length + 100 * size + batch)
    arrays = [orthogonal(rng, length, batch, size), rng.normal(size=(batch, size))]
    if adds:
        arrays.append(rng.normal(size=(length, batch, size)))
    return [array.astype(dtype) for array in arrays]


def serial(
    matrices: np.ndarray, vector: np.ndarray, addends: Any = 0.0, *, adjoint: bool = False
) -> np.ndarray:
    """v_0 ... v_n, one matrix after the other, in float64."""
    matrices = matrices.astype(np.float64)
    addends = np.broadcast_to(np.asarray(addends, np.float64), matrices.shape[:3])
    steps = list(zip(matrices, addends, strict=True))
    if adjoint:
        steps = [(m.transpose(0, 2, 1), a) for m, a in reversed(steps)]
    vectors = [vector.astype(np.float64)]
    for matrix, addend in steps:
        vectors.append(np.einsum("bij,bj->bi", matrix, vectors[-1]) + addend)
    return np.stack(vectors[::-1] if adjoint else vectors)


def assert_close(vectors: Any, expected: np.ndarray, tolerance: float) -> None:
    """Equal relative to the length of each vector, or of what went into it if that cancels."""
    norms = np.linalg.norm(expected, axis=-1)
    errors = np.linalg.norm(np.asarray(vectors, np.float64) - expected, axis=-1)
    assert np.all(errors <= tolerance * np.maximum(norms, 0.3 * norms.max(initial=0.0)))


def levels_of(length: int) -> list[int | None]:
    most = int(np.ceil(np.log2(length + 1)))
    return [None, *range(most + 2), most + 9]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scan_is_the_serial_product(shape: tuple[int, int, int], dtype: str) -> None:
    for adjoint in (False, True):
        for adds in (False, True):
            chain = random_chain(*shape, dtype, adds)
            expected = serial(*chain, adjoint=adjoint)
            for levels in levels_of(shape[0]):
                for threads in (1, 2):
                    vectors = package.scan(*chain, adjoint=adjoint, levels=levels, threads=threads)
                    assert vectors.dtype == dtype
                    assert_close(vectors, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("way", WAYS)
def test_scan_runs_in_functions(way: str) -> None:
    chain = random_chain(21, 6, 3, adds=True)
    for adjoint in (False, True):
        run = WAYS[way](lambda *c, adjoint=adjoint: package.scan(*c, adjoint=adjoint, levels=2))
        vectors = run(*map(tf.constant, chain))
        assert_close(vectors, serial(*chain, adjoint=adjoint), 1e-12)


def test_shapes_may_be_unknown_in_a_graph() -> None:
    chain = random_chain(9, 4, 2)
    spec = [tf.TensorSpec([None] * 4, tf.float64), tf.TensorSpec([None] * 2, tf.float64)]
    vectors = tf.function(package.scan, input_signature=spec)(*chain)
    assert_close(vectors, serial(*chain), 1e-12)


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (((4, 2, 3, 3), (1, 3)), r"vector of the shape \[2,3\].*received \[1,3\]"),
        (((4, 2, 3, 2), (2, 3)), r"matrices of the shape \[4,2,3,3\].*received \[4,2,3,2\]"),
        (((4, 2, 3, 3), (2, 3), (3, 2, 3)), r"addends of the shape \[4,2,3\]"),
    ],
)
def test_shapes_that_only_the_step_knows_are_checked(shapes: Any, text: str) -> None:
    spec = [tf.TensorSpec([None] * len(shape), tf.float64) for shape in shapes]
    run = tf.function(package.scan, input_signature=spec)
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        run(*[np.ones(shape) for shape in shapes])


def test_more_threads_than_there_can_be_are_no_error() -> None:
    chain = random_chain(3000, 4, 1)
    for threads in (1000, 2**31, 2**32):
        assert_close(package.scan(*chain, levels=62, threads=threads), serial(*chain), 1e-11)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("adjoint", [False, True])
def test_gradients_are_those_of_the_serial_product(adjoint: bool, way: str) -> None:
    chain = [tf.constant(array) for array in random_chain(12, 4, 3, adds=True)]
    weights = np.random.default_rng(1).normal(size=(13, 3, 4))

    def gradients(function: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(chain)
            loss = tf.reduce_sum(function(*chain) ** 2 * weights)
        return tape.gradient(loss, chain)

    def loop(matrices: tf.Tensor, vector: tf.Tensor, addends: tf.Tensor) -> tf.Tensor:
        vectors = [vector]
        for t in reversed(range(12)) if adjoint else range(12):
            vectors.append(tf.linalg.matvec(matrices[t], vectors[-1], transpose_a=adjoint))
            vectors[-1] += addends[t]
        return tf.stack(vectors[::-1] if adjoint else vectors)

    expected = gradients(loop)
    for levels in (0, 2, 4):
        run = WAYS[way](lambda *c, levels=levels: package.scan(*c, adjoint=adjoint, levels=levels))
        assert_all_close(gradients(run), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("adds", [False, True])
def test_gradients_have_gradients(adjoint: bool, adds: bool) -> None:
    chain = [tf.constant(array) for array in random_chain(3, 2, 1, adds=adds)]

    def all_gradients(*chain: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(chain)
            loss = tf.reduce_sum(package.scan(*chain, adjoint=adjoint, levels=2) ** 3)
        return tf.concat([tf.reshape(d, [-1]) for d in tape.gradient(loss, chain)], axis=0)

    numeric, analytic = tf.test.compute_gradient(all_gradients, chain, delta=1e-4)
    assert_all_close(numeric, analytic, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_where_it_belongs(number: float) -> None:
    for adjoint in (False, True):
        for levels in (0, 1, 3, 9):
            matrices, vector = random_chain(40, 5, 3, "float32")
            clean = package.scan(matrices, vector, adjoint=adjoint, levels=levels)
            matrices[17, 1, 2, 3] = number
            vectors = package.scan(matrices, vector, adjoint=adjoint, levels=levels).numpy()
            spoiled = np.zeros(vectors.shape, bool)
            with np.errstate(invalid="ignore"):
                spoiled[~np.isfinite(serial(matrices, vector, adjoint=adjoint))] = True
            assert spoiled.any()
            np.testing.assert_array_equal(~np.isfinite(vectors), spoiled)
            np.testing.assert_array_equal(vectors[~spoiled], clean.numpy()[~spoiled])


@pytest.mark.parametrize("radius", [0.0, 0.97, 1.02])
def test_spectral_radius_may_be_any(radius: float) -> None:
    matrices, vector = random_chain(1500, 4, 2)
    for levels in (0, 5, None, 20):
        vectors = package.scan(radius * matrices, vector, levels=levels)
        expected = serial(radius * matrices, vector)
        errors = np.linalg.norm(vectors - expected, axis=-1)
        assert np.all(errors <= 1e-11 * np.linalg.norm(expected, axis=-1))


def test_an_empty_chain_returns_its_vector() -> None:
    vector = np.ones((2, 3), np.float32)
    for levels in (None, 0, 4):
        vectors = package.scan(np.zeros((0, 2, 3, 3), np.float32), vector, levels=levels)
        np.testing.assert_array_equal(vectors, vector[None])
    assert package.scan(np.zeros((4, 0, 3, 3), np.float32), np.zeros((0, 3), np.float32)).shape == (
        5, 0, 3,
    )  # fmt: skip


MATRICES, VECTOR = np.zeros((4, 2, 3, 3), np.float32), np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((MATRICES.astype(np.float16), VECTOR), {}, TypeError, "matrices of float16"),
        ((MATRICES, VECTOR.astype(np.float64)), {}, TypeError, "vector of float64"),
        ((MATRICES.astype(int), VECTOR), {}, TypeError, "matrices of int64"),
        ((MATRICES[0], VECTOR), {}, ValueError, r"shape \(n, batch, size, size\)"),
        ((MATRICES[..., :2], VECTOR), {}, ValueError, r"shape \(n, batch, size, size\)"),
        ((MATRICES, VECTOR[:1]), {}, ValueError, r"`vector` must have the shape \(2, 3\)"),
        ((MATRICES, VECTOR, MATRICES[..., 0, :2]), {}, ValueError, "`addends` must have"),
        ((MATRICES, VECTOR), {"levels": -1}, ValueError, "`levels` must be"),
        ((MATRICES, VECTOR), {"levels": True}, ValueError, "`levels` must be"),
        ((MATRICES, VECTOR), {"threads": 0}, ValueError, "`threads` must be"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: Any, options: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        package.scan(*arguments, **options)
