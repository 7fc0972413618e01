"""Results of large allreduces, and inputs, in memory that all ranks of a host share."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.collectives import common

SHAPE = (700, 1001)  # several blocks, with a rest
SMALL = (100, 100)


def is_shared(result: Any) -> bool:
    """Return whether a result's memory is mapped from the segment of the host."""
    array = result if isinstance(result, np.ndarray) else result._numpy()
    address: int = array.ctypes.data
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            if begin <= address < end:
                return "memfd:" in line or "/dev/shm" in line
    raise AssertionError(f"no mapping at {address:#x}")


def array_of_rank(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    return common.of_all_ranks("float32", shape, seed)[ringar.rank()]


def sums(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    return common.reduced(ringar.Sum, common.of_all_ranks("float32", shape, seed))


@pytest.mark.ranks(2, 3, 4)
def test_results_of_arrays() -> None:
    for seed in range(3):
        result = ringar.allreduce(array_of_rank(seed=seed), ringar.Sum)
        assert is_shared(result)
        common.assert_same(result, sums(seed=seed))
    assert not is_shared(ringar.allreduce(array_of_rank(SMALL), ringar.Sum))


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("traced", [False, True])
def test_results_of_tensors(traced: bool) -> None:
    def reduce(large: tf.Tensor, small: tf.Tensor, other: tf.Tensor) -> list[tf.Tensor]:
        return ringar.grouped_allreduce([large, small, other], ringar.Sum)

    function = tf.function(reduce) if traced else reduce
    arrays = [array_of_rank(), array_of_rank(SMALL), array_of_rank((300, 400))]
    tensors = [tf.constant(array) for array in arrays]
    for _ in range(4):
        results = function(*tensors)
        for result, array in zip(results, arrays, strict=True):
            common.assert_same(result.numpy(), sums(array.shape))
    # Eagerly, TensorFlow has not lent the memory of arguments the first time. What a graph issues
    # while it goes on is copied there, small arrays with large ones.
    assert [is_shared(result) for result in results] == [True, traced, True]
    for tensor, array in zip(tensors, arrays, strict=True):
        common.assert_same(tensor.numpy(), array)


@pytest.mark.ranks(2, 3, 4)
def test_dtypes() -> None:
    for dtype in common.REDUCIBLE:
        arrays = common.of_all_ranks(dtype, SHAPE)
        array = ringar.empty(SHAPE, arrays[0].dtype)
        assert (array.dtype, array.shape) == (arrays[0].dtype, SHAPE)
        array[:] = arrays[ringar.rank()]
        common.assert_same(
            ringar.allreduce(array, ringar.Max), common.reduced(ringar.Max, arrays), dtype
        )


@pytest.mark.ranks(2, 3, 4)
def test_memory_is_used_again() -> None:
    gc.collect()  # or what other tests have left may end meanwhile
    first = ringar.allreduce(array_of_rank(), ringar.Sum)
    address = first.ctypes.data
    view = first[3:]
    del first
    assert ringar.allreduce(array_of_rank(), ringar.Sum).ctypes.data != address  # a view keeps it
    del view
    assert ringar.allreduce(array_of_rank(), ringar.Sum).ctypes.data == address


@pytest.mark.ranks(2, 3, 4)
def test_inputs_in_the_pool() -> None:
    array = ringar.empty(SHAPE)
    assert is_shared(array)
    array[:] = array_of_rank()
    for _ in range(2):
        common.assert_same(ringar.allreduce(array, ringar.Sum), sums())
    common.assert_same(array, array_of_rank())
    # One rank alone, and a part of an array.
    part = array[100:300] if ringar.rank() == 0 else array_of_rank()[100:300]
    common.assert_same(ringar.allreduce(part, ringar.Sum), sums()[100:300])


@pytest.mark.ranks(2, 3, 4)
def test_inputs_of_other_collectives_in_the_pool(rank: int, size: int) -> None:
    # A higher rank has more rows; once the last one has an ordinary array.
    arrays = [common.values("float32", (SHAPE[0] + 2 * r, SHAPE[1]), r) for r in range(size)]
    for is_ordinary in (False, rank == size - 1):
        array = np.empty_like(arrays[rank]) if is_ordinary else ringar.empty(arrays[rank].shape)
        array[:] = arrays[rank]
        common.assert_same(ringar.allgather(array), np.concatenate(arrays))
        parts = [np.array_split(operand, size)[rank] for operand in arrays]
        common.assert_same(ringar.alltoall(array), np.concatenate(parts))

        head, heads = array[: SHAPE[0]], [operand[: SHAPE[0]] for operand in arrays]
        common.assert_same(ringar.broadcast(head, 1), heads[1])
        most = np.array_split(np.max(heads, axis=0), size)[rank]
        common.assert_same(ringar.reducescatter(head, ringar.Max), most)
        common.assert_same(array, arrays[rank])


@pytest.mark.ranks(2, 3, 4)
def test_results_as_inputs() -> None:
    result = ringar.allreduce(array_of_rank(), ringar.Sum)
    again = ringar.allreduce(result, ringar.Max)
    common.assert_same(again, result)
    tensor = tf.constant(array_of_rank())
    for _ in range(3):
        tensor = ringar.allreduce(tensor, ringar.Average)
    np.testing.assert_allclose(tensor.numpy(), sums() / ringar.size(), rtol=1e-5)


@pytest.mark.ranks(2, 3, 4)
def test_a_variable_keeps_a_result() -> None:
    variable = tf.Variable(tf.zeros(SHAPE))

    @tf.function
    def step(tensor: tf.Tensor) -> None:
        variable.assign(ringar.allreduce(tensor, ringar.Sum))
        variable.assign_add(tf.ones(SHAPE))

    for _ in range(4):
        step(tf.constant(array_of_rank()))
        ringar.allreduce(array_of_rank(seed=1), ringar.Sum)
        common.assert_same(variable.numpy(), sums() + np.float32(1))


def test_empty_without_a_pool() -> None:
    assert ringar.empty(7).shape == (7,)
    assert ringar.empty((), "float64").dtype == np.float64
    assert ringar.empty((0, 3), np.int8).size == 0
    assert not is_shared(ringar.empty(SMALL))
    if ringar.size() == 1:
        assert not is_shared(ringar.empty(SHAPE))
