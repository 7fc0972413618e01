"""Calls that repeat take a short way: with the results, errors and limits of the first one."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.executor import new_executor

import ringar
from ringar import errors
from ringar.collectives import repeats
from ringar.collectives.compression import Compressor
from ringar.job import place
from tests.collectives.common import MOVED, REDUCIBLE

pytestmark = pytest.mark.usefixtures("initialized")

TURNS = 4


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    place.repeats.clear()


@pytest.mark.parametrize("convert", [np.asarray, tf.constant])
def test_other_values(convert: type, rank: int, size: int) -> None:
    for turn in range(TURNS):
        row = np.full((1, 3), rank + turn, np.float32)
        every_row = np.repeat(np.arange(size, dtype=np.float32)[:, None] + turn, 3, axis=1)
        value = convert(row)
        results = [
            ringar.allreduce(value, ringar.Sum), ringar.allreduce(value, ringar.Max),
            ringar.allreduce(value), ringar.allreduce(value, ringar.Sum, postscale_factor=2.0),
            ringar.allgather(value), ringar.broadcast(value, size - 1),
        ]  # fmt: skip
        ringar.barrier()
        rows = every_row.sum(0), every_row.max(0), every_row.mean(0), 2 * every_row.sum(0)
        for result, expected in zip(results, [*rows, every_row, every_row[-1]], strict=True):
            np.testing.assert_array_equal(result, expected.reshape(-1, 3))
        assert len(place.repeats) == 7


def test_other_arrays(rank: int, size: int) -> None:
    shapes = (), (2,), (2, 2), (0, 3), (300_000,)
    for _ in range(2):
        for shape in shapes:
            for dtype in (np.float32, np.float64, np.dtype(">f4")):
                total = ringar.allreduce(np.ones(shape, dtype).T, ringar.Sum)
                assert total.shape == shape[::-1]
                assert total.dtype == np.dtype(dtype).newbyteorder("=")
                assert np.all(total == size)
    matrix = np.arange(6.0).reshape(2, 3)
    for array in (matrix, np.asfortranarray(matrix), matrix[:, ::-1]):
        np.testing.assert_array_equal(ringar.allreduce(array), array)


def test_other_tensors(rank: int, size: int) -> None:
    pairs = []
    for _ in range(2):
        for dtype in MOVED:
            for shape in (), (2,), (2, 2), (0, 3), (70_000,):
                value = tf.cast(tf.fill(shape, rank + 1), dtype)
                pairs.append((ringar.broadcast(value, size - 1), tf.fill(shape, size)))
                if dtype in REDUCIBLE:
                    total = tf.fill(shape, size * (size + 1) // 2)
                    pairs.append((ringar.allreduce(value, ringar.Sum), total))
    for result, expected in pairs:
        np.testing.assert_array_equal(result.numpy(), tf.cast(expected, result.dtype).numpy())
        assert result.device.endswith("CPU:0")


@pytest.mark.parametrize("convert", [np.asarray, tf.constant])
def test_ranks_with_other_numbers_of_rows(convert: type, rank: int, size: int) -> None:
    for turn in (0, 0, 1, 2):  # once as expected, then with more rows than that from some ranks
        rows = np.asarray(ringar.allgather(convert(np.full((1 + turn * rank, 2), rank))))
        assert rows[:, 0].tolist() == [r for r in range(size) for _ in range(1 + turn * r)]


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize(
    ("convert", "error"),
    [(np.asarray, errors.MismatchError), (tf.constant, tf.errors.InvalidArgumentError)],
)
def test_disagreement(convert: type, error: type[Exception], rank: int) -> None:
    value = convert(np.ones(2))
    for _ in range(TURNS):
        ringar.allreduce(value, name="first")
        ringar.allreduce(value, name="second")
        with pytest.raises(error, match=r'"first"[\s\S]*"second"|"second"[\s\S]*"fir'):
            ringar.allreduce(value, name="second" if rank else "first")


@pytest.mark.parametrize("convert", [np.asarray, tf.constant])
def test_threads_share_a_call(convert: type, size: int) -> None:
    failures: list[str] = []

    def run() -> None:
        for turn in range(50):
            if not np.all(ringar.allreduce(convert(np.full(3, 5.0)), ringar.Sum) == 5 * size):
                failures.append(f"turn {turn}")

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_removed_process_set(size: int) -> None:
    everyone = ringar.add_process_set(range(size))
    for _ in range(2):
        assert ringar.allreduce(np.ones(1), ringar.Sum, process_set=everyone) == [size]
    ringar.remove_process_set(everyone)
    with pytest.raises(ValueError, match="a process set that is in use"):
        ringar.allreduce(np.ones(1), ringar.Sum, process_set=everyone)


def test_gradient(rank: int, size: int) -> None:
    for turn in range(TURNS):
        x = tf.constant([1.0, 2.0]) * turn
        ringar.allreduce(x, ringar.Sum)
        with tf.GradientTape() as tape:
            if turn % 2 or rank == 0:  # otherwise only rank 0 records
                tape.watch(x)
            total = ringar.allreduce(x, ringar.Sum)
            loss = tf.reduce_sum(total)
        np.testing.assert_array_equal(total, size * x)
        if turn % 2:
            np.testing.assert_array_equal(tape.gradient(loss, x), [size, size])
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as forward:
            total = ringar.allreduce(x, ringar.Sum)
        np.testing.assert_array_equal(forward.jvp(total), [size, size])


def test_order_behind_an_executor(rank: int, size: int) -> None:
    x, y = tf.ones(3), tf.ones(5)
    ringar.allreduce(x, ringar.Sum)
    executor = new_executor(enable_async=rank == 0)
    with context.executor_scope(executor):
        for _ in range(50):
            totals = [ringar.grouped_allreduce([y, y], ringar.Sum), ringar.allreduce(x, ringar.Sum)]
        executor.wait()
    assert all(np.all(total == size) for total in tf.nest.flatten(totals))


def test_arguments_that_are_refused() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="an op out of"):
            ringar.allreduce(np.ones(2), [])  # type: ignore[arg-type]


def test_compressor_that_changes_values(size: int) -> None:
    class Halves(Compressor):
        @staticmethod
        def compress(tensor: Any) -> tuple[Any, object]:
            return tensor / 2, None

    for _ in range(2):
        total = ringar.allreduce(np.full(2, 4.0), ringar.Sum, compression=Halves)
        assert total.tolist() == [2 * size] * 2


def test_graph_numbers_its_calls() -> None:
    array = np.ones(2, np.float32)
    for _ in range(2):
        ringar.allreduce(tf.constant(array))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return ringar.allreduce(ringar.allreduce(x))

    np.testing.assert_array_equal(step(array), array)
    graph = step.get_concrete_function(array).graph
    specs = [op.get_attr("spec") for op in graph.get_operations() if op.type == "RingarAllreduce"]
    assert [spec.split(b"name=")[1] for spec in specs] == [b"allreduce_0", b"allreduce_1"]


def test_number_of_calls_that_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "REMEMBERED", 3)
    for turn in range(8):
        ringar.barrier(name=f"turn {turn}")
        assert 1 <= len(place.repeats) <= 3
