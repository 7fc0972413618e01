"""What the tests of the collectives share: the four ways to call one, dtypes, inputs, references.

Every rank makes the inputs of all ranks, from their seeds, and so knows what it must get.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.plugin import fast_if

MODES = ("numpy", "eager", "graph", "compiled")
FLOATING = ("float16", "bfloat16", "float32", "float64")
REDUCIBLE = (*FLOATING, "int8", "uint8", "int32", "int64")
MOVED = (*REDUCIBLE, "bool", "int16", "uint16", "uint32", "uint64", "complex64", "complex128")
OPS = (ringar.Sum, ringar.Average, ringar.Min, ringar.Max, ringar.Product)

# As in tf_ops/algorithms/shared_memory.h and tf_ops/engine/communicator.cc: where algorithms change
# their way, so that tests can go there.
SMALL_BYTES = 32 << 10
SLICE_BYTES = 128 << 10

REFUSED = (ValueError, tf.errors.InvalidArgumentError, tf.errors.InternalError)
"""What an argument raises that cannot be used: in Python, in NumPy and graphs, and compiled."""

Function = Callable[..., Sequence[Any]]


def modes_and_dtypes(dtypes: Sequence[str], modes: Sequence[str] = MODES) -> Any:
    """Parametrizes a test: all dtypes in the first mode, float32 in all, and the rest is slow.

    Dtypes are the engine's business and modes the front end's. A test beside it has all dtypes in
    one function of each mode.
    """
    return pytest.mark.parametrize(
        ("mode", "dtype"),
        [
            fast_if(mode == modes[0] or dtype == "float32", mode, dtype)
            for mode in modes
            for dtype in dtypes
        ],
    )


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of that name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def values(dtype: str, shape: Sequence[int], seed: int) -> np.ndarray:
    """Numbers around 1, of both signs where there are any; a function of the seed alone.

    Integers take all values: sums and products of them wrap around.
    """
    rng = np.random.default_rng([seed, len(shape), *shape])
    to = numpy_dtype(dtype)
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, size=shape) == 1)
    if to.kind in "iu":
        limits = np.iinfo(to)
        return np.asarray(rng.integers(limits.min, limits.max, shape, to, endpoint=True))
    real = rng.uniform(0.5, 2.0, shape) * rng.choice([-1.0, 1.0], shape)
    if to.kind == "c":
        return np.asarray(real + 1j * rng.normal(size=shape)).astype(to)
    return np.asarray(real).astype(to)


def of_all_ranks(dtype: str, shape: Sequence[int], seed: int = 0) -> list[np.ndarray]:
    """What each rank of the job brings, where all bring the same shape."""
    return [values(dtype, shape, 1000 * seed + r) for r in range(ringar.size())]


def prepare(mode: str, function: Function) -> Callable[..., list[np.ndarray]]:
    """``function`` of arrays, called with arrays, with tensors, traced or compiled (once)."""
    if mode == "graph":
        function = tf.function(function)
    elif mode == "compiled":
        function = tf.function(function, jit_compile=True)

    def call(*inputs: np.ndarray) -> list[np.ndarray]:
        if mode == "numpy":
            results = list(function(*inputs))
            assert all(isinstance(result, np.ndarray) for result in results)
            return results
        tensors = [tf.constant(array) for array in inputs]
        return [result.numpy() for result in function(*tensors)]

    return call


def run(mode: str, function: Function, *inputs: np.ndarray) -> list[np.ndarray]:
    """Calls ``function`` with arrays in one of the four ways; returns arrays."""
    return prepare(mode, function)(*inputs)


def reduced(
    op: ringar.ReduceOp, arrays: Sequence[np.ndarray], prescale: float = 1.0, postscale: float = 1.0
) -> np.ndarray:
    """The arrays reduced in their order: float16 and bfloat16 in float32, rounded once."""
    dtype = arrays[0].dtype
    accumulator = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype
    if op is ringar.Average:
        op, postscale = ringar.Sum, postscale / len(arrays)
    combine = {
        ringar.Sum: np.add,
        ringar.Min: np.minimum,
        ringar.Max: np.maximum,
        ringar.Product: np.multiply,
    }[op]
    with np.errstate(all="ignore"):
        terms = [array.astype(accumulator) for array in arrays]
        if prescale != 1.0:
            terms = [term * accumulator.type(prescale) for term in terms]
        total = terms[0]
        for term in terms[1:]:
            total = combine(total, term, dtype=accumulator)
        if postscale != 1.0:
            total = total * accumulator.type(postscale)
        return np.asarray(total).astype(dtype)


def share(total: np.ndarray) -> np.ndarray:
    """This rank's rows: dealt out evenly, the first ranks get one more."""
    return np.ascontiguousarray(np.array_split(total, ringar.size())[ringar.rank()])


def assert_same(received: Any, expected: np.ndarray, case: object = "") -> None:
    """Fails unless both have the same dtype, shape and bits; any NaN is as good as another."""
    received = np.asarray(received)
    assert received.dtype == expected.dtype, (case, received.dtype, expected.dtype)
    assert received.shape == expected.shape, (case, received.shape, expected.shape)
    if received.tobytes() == expected.tobytes():
        return
    with np.errstate(all="ignore"):
        nan = np.isnan(expected)
        assert np.array_equal(nan, np.isnan(received)), f"{case}: NaN in other places"
        differ = (received != expected) & ~nan
        differ |= (np.signbit(received.real) != np.signbit(expected.real)) & ~nan
    places = np.argwhere(differ)
    assert not len(places), (
        f"{case}: {len(places)} elements differ, the first at {tuple(places[0])}: "
        f"received {received[tuple(places[0])]}, expected {expected[tuple(places[0])]}"
    )


def assert_all_same(
    received: Sequence[Any], expected: Sequence[np.ndarray], case: object = ""
) -> None:
    """:func:`assert_same` for lists."""
    assert len(received) == len(expected)
    for i, (result, other) in enumerate(zip(received, expected, strict=True)):
        assert_same(result, other, f"{case}[{i}]")


def check_reductions(
    mode: str,
    collective: Callable[[Any, ringar.ReduceOp], Any],
    dtypes: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    part: Callable[[np.ndarray], np.ndarray] = lambda total: total,
) -> None:
    """Compares a collective with NumPy, for each dtype, op and shape in one function."""
    cases = [
        (dtype, op, shape)
        for dtype, op, shape in itertools.product(dtypes, OPS, shapes)
        if op is not ringar.Average or dtype in FLOATING
    ]
    inputs = [of_all_ranks(dtype, shape, i) for i, (dtype, _, shape) in enumerate(cases)]

    def reduce(*tensors: Any) -> list[Any]:
        return [collective(t, op) for t, (_, op, _) in zip(tensors, cases, strict=True)]

    results = run(mode, reduce, *[arrays[ringar.rank()] for arrays in inputs])
    for case, arrays, result in zip(cases, inputs, results, strict=True):
        assert_same(result, part(reduced(case[1], arrays)), case)
