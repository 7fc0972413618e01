"""Horovod's collectives: results, averages of integers, slices in groups, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
import ringar.horovod.tensorflow as hvd
import ringar.horovod.tensorflow.keras as of_keras

pytestmark = pytest.mark.usefixtures("initialized")


def of_rank(rank: int, rows: int = 4) -> np.ndarray:
    return np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) + 10 * rank


def local_rows(rows: int = 4) -> tf.Tensor:
    return tf.constant(of_rank(hvd.rank(), rows))


def everyone(rows: int = 4) -> np.ndarray:
    return np.stack([of_rank(rank, rows) for rank in range(hvd.size())])


def test_reductions() -> None:
    x, all_ranks = local_rows(), everyone()
    expected = {
        hvd.Average: all_ranks.mean(0),
        hvd.Sum: all_ranks.sum(0),
        hvd.Min: all_ranks.min(0),
        hvd.Max: all_ranks.max(0),
        hvd.Product: all_ranks.prod(0),
    }
    for op, value in expected.items():
        np.testing.assert_allclose(hvd.allreduce(x, op=op), value, rtol=1e-6)
    np.testing.assert_allclose(hvd.allreduce(x), all_ranks.mean(0), rtol=1e-6)
    np.testing.assert_allclose(
        hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0),
        2 * all_ranks.sum(0),
    )


def test_average_is_the_older_op() -> None:
    with pytest.warns(DeprecationWarning, match="`average`"):
        total = hvd.allreduce(local_rows(), average=False)
    np.testing.assert_allclose(total, everyone().sum(0))
    with pytest.raises(ValueError, match="received both"):
        hvd.allreduce(local_rows(), average=True, op=hvd.Sum)


@pytest.mark.parametrize("dtype", ["int32", "int64", "int8", "uint8"])
def test_averages_of_integers_are_cut_off(dtype: str) -> None:
    values = [np.array([1, 2, 7, 9 + rank], dtype) for rank in range(hvd.size())]
    if dtype[0] == "i":
        values = [value - np.array(3, dtype) for value in values]
    total = np.sum(values, 0, dtype=np.int64)
    mean = hvd.allreduce(tf.constant(values[hvd.rank()]))
    assert mean.dtype == dtype
    np.testing.assert_array_equal(mean, np.trunc(total / hvd.size()))
    halves = hvd.allreduce(tf.constant(values[hvd.rank()]), op=hvd.Sum, prescale_factor=0.5)
    np.testing.assert_array_equal(halves, np.sum([np.trunc(v * 0.5) for v in values], 0))


def test_a_list_is_reduced_as_keras_scripts_do_for_a_barrier() -> None:
    np.testing.assert_array_equal(of_keras.allreduce([0], name="Barrier"), [0])
    np.testing.assert_allclose(
        of_keras.allreduce([1.0 + hvd.rank()]), [(hvd.size() + 1) / 2], rtol=1e-6
    )


def test_moves() -> None:
    gathered = hvd.allgather(local_rows(hvd.rank() + 1))
    np.testing.assert_array_equal(
        gathered, np.concatenate([of_rank(rank, rank + 1) for rank in range(hvd.size())])
    )
    last = hvd.size() - 1
    np.testing.assert_array_equal(hvd.broadcast(local_rows(), last), of_rank(last))
    np.testing.assert_array_equal(hvd.broadcast(local_rows(), last, "named"), of_rank(last))
    rows = local_rows(hvd.size())
    np.testing.assert_array_equal(hvd.alltoall(rows), everyone(hvd.size())[:, hvd.rank()])
    received, counts = hvd.alltoall(rows, [1] * hvd.size())
    np.testing.assert_array_equal(received, everyone(hvd.size())[:, hvd.rank()])
    np.testing.assert_array_equal(counts, [1] * hvd.size())
    assert counts.dtype == tf.int32
    share = hvd.reducescatter(local_rows(hvd.size() + 1))
    first = hvd.rank() + (hvd.rank() > 0)
    mean = everyone(hvd.size() + 1).mean(0)
    np.testing.assert_allclose(share, mean[first : first + (2 if hvd.rank() == 0 else 1)])
    hvd.barrier()


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("way", ["eager", "function"])
def test_alltoall_without_splits_refuses_rows_that_do_not_come_out_even(way: str) -> None:
    """On all ranks, though the rows of the others do."""
    exchange = hvd.alltoall
    if way == "function":
        exchange = tf.function(hvd.alltoall, input_signature=[tf.TensorSpec([None], tf.int32)])
    n = hvd.size()
    rows = tf.fill([2 * n], hvd.rank())
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"rank 0: alltoall.* refused"):
        exchange(rows[1:] if hvd.rank() == 0 else rows)
    np.testing.assert_array_equal(exchange(rows), np.repeat(range(n), 2))


def test_groups() -> None:
    tensors = [local_rows(), local_rows(2) * 2, tf.constant([hvd.rank(), 1])]
    reduced = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    np.testing.assert_allclose(reduced[0], everyone().sum(0))
    np.testing.assert_allclose(reduced[1], 2 * everyone(2).sum(0))
    np.testing.assert_array_equal(reduced[2], [sum(range(hvd.size())), hvd.size()])
    assert hvd.grouped_allreduce([]) == []
    for gathered in hvd.grouped_allgather([local_rows(), local_rows()]):
        np.testing.assert_array_equal(gathered, np.concatenate(everyone()))
    n = hvd.size()
    for share in hvd.grouped_reducescatter([local_rows(n), local_rows(n)], op=hvd.Max):
        np.testing.assert_array_equal(share, everyone(n).max(0)[[hvd.rank()]])


def slices(rank: int) -> tf.IndexedSlices:
    values = tf.constant([[1.0 + rank, 2.0], [3.0, 4.0]])
    return tf.IndexedSlices(values, tf.constant([rank, 3]), tf.constant([9, 2]))


def test_slices_in_a_group_stay_slices() -> None:
    dense, sparse = hvd.grouped_allreduce([local_rows(), slices(hvd.rank())])
    np.testing.assert_allclose(dense, everyone().mean(0), rtol=1e-6)
    assert isinstance(sparse, tf.IndexedSlices)
    expected = np.mean([tf.convert_to_tensor(slices(r)) for r in range(hvd.size())], 0)
    np.testing.assert_allclose(tf.convert_to_tensor(sparse), expected, rtol=1e-6)
    np.testing.assert_allclose(
        tf.convert_to_tensor(hvd.allreduce(slices(hvd.rank()), op=hvd.Sum)),
        expected * hvd.size(),
        rtol=1e-6,
    )
    for op in (hvd.Min, hvd.Adasum):
        with pytest.raises(NotImplementedError, match="expected Average or Sum"):
            hvd.grouped_allreduce([slices(0)], op=op)
    with pytest.raises(NotImplementedError, match="factors"):
        hvd.allreduce(slices(0), prescale_factor=2.0)


def test_broadcast_in_place() -> None:
    variables = [tf.Variable(local_rows()), tf.Variable([hvd.rank()])]
    values = hvd.broadcast_(variables, 0)
    np.testing.assert_array_equal(variables[0], of_rank(0))
    np.testing.assert_array_equal(values[1], [0])
    variables[0].assign(local_rows())
    hvd.broadcast_variables(variables, root_rank=0, inplace=True)
    np.testing.assert_array_equal(variables[0], of_rank(0))
    with pytest.raises(RuntimeError, match="call broadcast_variables"):
        hvd.broadcast_global_variables(0)


def test_variables_of_a_graph_of_tensorflow_1() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.Variable([hvd.rank() + 5], name="own", use_resource=True)
        operation = hvd.broadcast_global_variables(0)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(operation)
        assert session.run(variable) == [5]


def test_objects_are_carried_by_cloudpickle() -> None:
    rank = hvd.rank()
    functions = hvd.allgather_object(lambda x: x + rank)
    assert [function(1) for function in functions] == [1 + r for r in range(hvd.size())]
    assert hvd.broadcast_object(lambda x: x * (rank + 2), 0)(10) == 20
    assert hvd.broadcast_object_fn(root_rank=hvd.size() - 1)({"rank": rank}) == {
        "rank": hvd.size() - 1
    }


def test_compression_casts() -> None:
    value = 1 + 2.0**-12  # float16 has 11 bits
    for dtype in (tf.float32, tf.float64):
        x = tf.constant([value], dtype)
        assert hvd.allreduce(x, compression=hvd.Compression.none)[0] == value
        rounded = hvd.allreduce(x, compression=hvd.Compression.fp16)
        assert (rounded.dtype, float(rounded[0])) == (dtype, 1.0)
    x = tf.constant([value])
    # Of ringar's own compressors; on one host nothing is narrowed.
    assert hvd.allreduce(x, compression=ringar.Compression.bf16)[0] == value
    with pytest.raises(ValueError, match="`compression` must be"):
        hvd.allreduce(x, compression=ringar.Compression.powersgd())  # type: ignore[arg-type]
    compressed, context = hvd.Compression.fp16.compress(tf.constant([2], tf.int32))
    assert (compressed.dtype, context) == (tf.int32, tf.int32)
    packed, context = hvd.Compression.fp16.compress(tf.constant([2.0]))
    assert packed.dtype == tf.float16
    assert hvd.Compression.fp16.decompress(packed, context).dtype == tf.float32


@pytest.mark.parametrize("way", ["eager", "function", "compiled"])
def test_gradients_have_the_scale_of_horovod(way: str) -> None:
    """For a loss that adds up the elements of the result: Horovod's tests have these numbers."""
    n = hvd.size()
    ones = np.ones((n, 2), np.float32)
    collectives: dict[str, tuple[Callable[[Any], Any], float]] = {
        "allgather": (hvd.allgather, 1.0),
        "broadcast": (lambda x: hvd.broadcast(x, 0), 1.0 if hvd.rank() == 0 else 0.0),
        "reducescatter, Sum": (lambda x: hvd.reducescatter(x, op=hvd.Sum), n),
        "reducescatter": (hvd.reducescatter, 1.0),
        "allreduce, Sum": (lambda x: hvd.allreduce(x, op=hvd.Sum), n),
        "allreduce": (hvd.allreduce, 1.0),
        "alltoall": (hvd.alltoall, 1.0),
        "grouped_allgather": (lambda x: hvd.grouped_allgather([x])[0], 1.0),
    }

    def slopes(x: tf.Tensor) -> list[tf.Tensor]:
        gradients = []
        for collective, _ in collectives.values():
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(collective(x))
            gradients.append(tape.gradient(loss, x))
        return gradients

    if way != "eager":
        slopes = tf.function(slopes, jit_compile=way == "compiled")
    for (name, (_, expected)), slope in zip(
        collectives.items(), slopes(tf.constant(ones)), strict=True
    ):
        np.testing.assert_allclose(slope, expected * ones, rtol=1e-6, err_msg=name)


def test_gradients_of_extremes_are_those_of_the_ranks_that_hold_them() -> None:
    """Where Horovod takes the minimum of the gradients, which means nothing."""
    x = tf.constant([float(hvd.rank()), -float(hvd.rank())])
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(hvd.allreduce(x, op=hvd.Min))
    expected = [hvd.rank() == 0, hvd.rank() == hvd.size() - 1]
    np.testing.assert_allclose(tape.gradient(loss, x), hvd.size() * np.array(expected, float))


def test_places_as_tensors() -> None:
    @tf.function
    def places() -> list[tf.Tensor]:
        return [
            hvd.size_op(),
            hvd.rank_op(),
            hvd.local_size_op(),
            hvd.local_rank_op(),
            hvd.process_set_included_op(),
            hvd.process_set_included_op(77),
        ]

    expected = [hvd.size(), hvd.rank(), hvd.local_size(), hvd.local_rank(), 1, -3]
    assert [int(place) for place in places()] == expected
    assert [int(hvd.size_op(0)), int(hvd.rank_op("named"))] == expected[:2]
    assert hvd.rank_op().dtype == tf.int32


def test_handles() -> None:
    handles = [hvd.allreduce_async(local_rows(), op=hvd.Sum, name=f"h{i}") for i in range(4)]
    gathered = hvd.allgather_async(local_rows())
    # A collective that waits is behind them, on all ranks.
    np.testing.assert_allclose(hvd.allreduce(local_rows()), everyone().mean(0), rtol=1e-6)
    assert all(hvd.poll(handle) for handle in handles)
    for handle in handles:
        np.testing.assert_allclose(hvd.synchronize(handle), everyone().sum(0))
    np.testing.assert_array_equal(hvd.synchronize(gathered), np.concatenate(everyone()))
    variable = tf.Variable(local_rows())
    for handle, expected in (
        (hvd.grouped_allreduce_async([local_rows()], op=hvd.Max), everyone().max(0)),
        (hvd.broadcast_async(local_rows(), 0), of_rank(0)),
        (hvd.broadcast_async_([variable], 0), of_rank(0)),
        (hvd.grouped_allgather_async([local_rows()]), np.concatenate(everyone())),
    ):
        result = hvd.synchronize(handle)
        np.testing.assert_array_equal(result[0] if isinstance(result, list) else result, expected)
    rows = local_rows(hvd.size())
    share = everyone(hvd.size()).mean(0)[[hvd.rank()]]
    np.testing.assert_allclose(hvd.synchronize(hvd.reducescatter_async(rows)), share)
    np.testing.assert_allclose(hvd.synchronize(hvd.grouped_reducescatter_async([rows]))[0], share)
    assert hvd.synchronize(hvd.alltoall_async(rows)).shape == rows.shape


def test_an_error_comes_with_its_handle() -> None:
    handle = hvd.reducescatter_async(local_rows(), op=hvd.Adasum)
    hvd.allreduce(local_rows())
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.synchronize(handle)
    with pytest.raises(RuntimeError, match="expected eager code"):
        tf.function(lambda: hvd.allreduce_async(local_rows()))()
