"""When collectives run: in the order of the current stream, and of what it is given and gives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ringar
from tests.collectives import common
from tests.cupy.collectives.common import Gpu

Collective = Callable[[Any], Any]
COLLECTIVES: dict[str, Collective] = {
    "allreduce": lambda a: ringar.cupy.allreduce(a, ringar.Sum),
    "allreduce in place": lambda a: ringar.cupy.allreduce(a, ringar.Sum, out=a),
    "reducescatter": lambda a: ringar.cupy.reducescatter(a, ringar.Sum),
    "allgather": lambda a: ringar.cupy.allgather(a),
    "broadcast": lambda a: ringar.cupy.broadcast(a, ringar.size() - 1),
    "alltoall": lambda a: ringar.cupy.alltoall(a),
}


def inputs_of(seed: int) -> list[np.ndarray]:
    """Whole numbers, whose sums do not depend on their order."""
    shape = (2 * ringar.size(), 50)
    return [
        np.random.default_rng([seed, r]).integers(-99, 99, shape).astype(np.float32)
        for r in range(ringar.size())
    ]


def expected(name: str, inputs: list[np.ndarray]) -> np.ndarray:
    rows = slice(2 * ringar.rank(), 2 * ringar.rank() + 2)
    total = np.asarray(sum(inputs), np.float32)
    return {
        "reducescatter": total[rows],
        "allgather": np.concatenate(inputs),
        "broadcast": inputs[-1],
        "alltoall": np.concatenate([a[rows] for a in inputs]),
    }.get(name, total)


@pytest.mark.parametrize("own_stream", [False, True])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_while_the_input_is_still_being_made(gpu: Gpu, name: str, own_stream: bool) -> None:
    stream = gpu.cupy.cuda.Stream(non_blocking=True) if own_stream else None
    with stream or gpu.cupy.cuda.get_current_stream():
        durations = []
        for seed in range(2):
            inputs = inputs_of(seed)
            array = gpu.cupy.empty(inputs[0].shape, np.float32)
            start = time.monotonic()
            gpu.produce(array, inputs[ringar.rank()], 0.2 if ringar.rank() == 0 else 0.01)
            result = COLLECTIVES[name](array)
            doubled = result * np.float32(2)  # used on the stream, right after
            durations.append(time.monotonic() - start)
            del array, result  # their memory is the next ones'
            common.assert_same(doubled.get(), 2 * expected(name, inputs), (name, seed))
        assert min(durations) < 0.15, "it waits for the GPU"


def test_two_streams_in_turn(gpu: Gpu) -> None:
    """The results of one stream do not wait for the other; all are right."""
    streams = [gpu.cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    results: list[tuple[str, int, Any]] = []
    for seed in range(4):
        for number, name in enumerate(COLLECTIVES):
            with streams[(seed + number) % 2]:
                inputs = inputs_of(seed + number)
                array = gpu.cupy.empty(inputs[0].shape, np.float32)
                gpu.produce(array, inputs[ringar.rank()], 0.002 * (ringar.rank() + number) % 0.007)
                results.append((name, seed + number, COLLECTIVES[name](array)))
    for i, (name, seed, result) in enumerate(results):
        with streams[(seed) % 2]:
            common.assert_same(result.get(), expected(name, inputs_of(seed)), (i, name, seed))


def test_results_of_one_collective_go_into_the_next(gpu: Gpu) -> None:
    ranks, rank = ringar.size(), ringar.rank()
    with gpu.cupy.cuda.Stream(non_blocking=True):
        array = gpu.put(np.full((ranks, 3), rank, np.int64))
        for _ in range(20):
            part = ringar.cupy.reducescatter(array, ringar.Sum)  # [1, 3]
            array = ringar.cupy.allgather(part + np.int64(rank))
            array = ringar.cupy.broadcast(array, ranks - 1)
        received = array.get()
    rows = np.full(ranks, sum(range(ranks))) + np.arange(ranks)
    for _ in range(19):  # from the second time on all ranks bring the same
        rows = rows * ranks + np.arange(ranks)
    common.assert_same(received, np.repeat(rows[:, None], 3, 1).astype(np.int64))


def test_many_in_a_row(gpu: Gpu) -> None:
    ranks, rank = ringar.size(), ringar.rank()
    array = gpu.put(np.zeros(5, np.float32))
    for i in range(200):
        array = ringar.cupy.allreduce(array + np.float32(rank + 1), ringar.Average)
        if i % 50 == 0:
            ringar.cupy.synchronize()
    np.testing.assert_allclose(array.get(), np.full(5, 200 * (ranks + 1) / 2), rtol=1e-4)


def test_synchronize_waits(gpu: Gpu) -> None:
    array = gpu.put(np.zeros(5, np.float32))
    start = time.monotonic()
    gpu.produce(array, np.ones(5, np.float32), 0.1)
    ringar.cupy.allreduce(array, ringar.Sum)
    ringar.cupy.synchronize()
    assert time.monotonic() - start >= 0.1
    ringar.cupy.synchronize()  # nothing is under way


def test_what_is_not_contiguous(gpu: Gpu) -> None:
    base = np.arange(60, dtype=np.float32).reshape(6, 10) + ringar.rank()
    device_array = gpu.cupy.empty(base.shape, np.float32)
    gpu.produce(device_array, base)
    total = ringar.size() * (base - ringar.rank()) + sum(range(ringar.size()))
    for view in (lambda a: a.T, lambda a: a[::2, ::3], lambda a: a[::-1], lambda a: a[1:, 2]):
        result = ringar.cupy.allreduce(view(device_array), ringar.Sum)
        assert result.flags.c_contiguous
        common.assert_same(result.get(), np.ascontiguousarray(view(total)))
    common.assert_same(device_array.get(), base)


def foreign(array: Any, protocol: str) -> Any:
    """The array as another library's, which has but one protocol."""
    if protocol == "cuda":
        members: dict[str, Any] = {
            "__cuda_array_interface__": property(lambda self: array.__cuda_array_interface__)
        }
    else:
        members = {
            "__dlpack__": lambda self, **options: array.__dlpack__(**options),
            "__dlpack_device__": lambda self: array.__dlpack_device__(),
        }
    return type("Foreign", (), members)()


@pytest.mark.parametrize("protocol", ["cuda", "dlpack"])
def test_arrays_of_other_libraries(gpu: Gpu, protocol: str) -> None:
    ranks = ringar.size()
    array = gpu.cupy.empty((2, 3), np.float32)
    gpu.produce(array, np.full((2, 3), 1.5, np.float32))
    argument = foreign(array, protocol)
    result = ringar.cupy.allreduce(argument, ringar.Sum)
    assert isinstance(result, gpu.cupy.ndarray)
    assert result.get().tolist() == [[1.5 * ranks] * 3] * 2
    assert ringar.cupy.allreduce(argument, ringar.Sum, out=argument) is argument
    assert array.get().tolist() == [[1.5 * ranks] * 3] * 2
    assert ringar.cupy.allgather(argument).get().shape == (2 * ranks, 3)


def test_threads_have_streams_of_their_own(gpu: Gpu) -> None:
    """One thread at a time: ranks must issue collectives in one order."""
    number, results = gpu.cupy.cuda.Device().id, []

    def work() -> None:
        with gpu.cupy.cuda.Device(number), gpu.cupy.cuda.Stream(non_blocking=True):
            array = gpu.cupy.empty((3,), np.float32)
            gpu.produce(array, np.ones(3, np.float32))
            results.append(ringar.cupy.allgather(array).get())

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [result.tolist() for result in results] == [[1.0] * 3 * ringar.size()] * 3


def test_the_current_device_and_stream_stay(gpu: Gpu) -> None:
    before = gpu.cupy.cuda.Device().id
    stream = gpu.cupy.cuda.Stream(non_blocking=True)
    with stream:
        ringar.cupy.allgather(gpu.put(np.ones(3, np.float32))).get()
        assert gpu.cupy.cuda.get_current_stream().ptr == stream.ptr
    assert gpu.cupy.cuda.Device().id == before
    assert gpu.cupy.cuda.get_current_stream().ptr == 0


def test_calls_that_repeat(gpu: Gpu) -> None:
    """A repeated call takes the array, stream, thread and output of its own time."""
    ranks, rank = ringar.size(), ringar.rank()
    total = ranks * (ranks + 1) / 2

    def check(value: float) -> None:
        array = gpu.put(np.full((3, 2), value * (rank + 1), np.float32))
        apart, rows = gpu.put(np.zeros((3, 2), np.float32)), gpu.put(np.ones(7, np.float32))
        for out in (None, apart, array):
            result = ringar.cupy.allreduce(array, ringar.Sum, out=out)
            assert result is out or out is None
            assert (result.get() == value * total).all()
        array = gpu.put(np.full((3, 2), value * (rank + 1), np.float32))
        assert (ringar.cupy.allreduce(array, ringar.Max).get() == value * ranks).all()
        assert (ringar.cupy.broadcast(array, ranks - 1).get() == value * ranks).all()
        assert (ringar.cupy.allreduce(array.T, ringar.Sum).get() == value * total).all()
        assert ringar.cupy.reducescatter(rows).shape == (len(range(rank, 7, ranks)),)
        for out in (rows[1:3], gpu.put(np.zeros(3, np.float32)), gpu.put(np.zeros(2))):
            with pytest.raises((ValueError, TypeError), match="in `out`"):
                ringar.cupy.allreduce(rows[:2], ringar.Sum, out=out)

    def on_another_thread() -> None:
        with gpu.cupy.cuda.Device(device), gpu.cupy.cuda.Stream(non_blocking=True):
            check(4)
        done.append(True)

    device, done = gpu.cupy.cuda.Device().id, list[bool]()
    check(1)
    check(2)
    with gpu.cupy.cuda.Stream(non_blocking=True):
        check(3)
    thread = threading.Thread(target=on_another_thread)
    thread.start()
    thread.join()
    assert done == [True]
