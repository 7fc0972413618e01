"""The stand-in for the CUDA driver and NCCL notices how it is misused."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import byref, c_int, c_void_p

import numpy as np
import pytest

from tests.standins.gpu_calls import Library, Rank, address, config, on_ranks, size, until

pytestmark = [pytest.mark.job, pytest.mark.slow]


SUM = ("ncclAllReduce", 4, 7, 0)
"""A collective, a count, a type, and what else there is; a float is a factor."""

DISAGREEMENTS: dict[str, tuple[list[tuple], list[tuple], str]] = {
    "count": ([SUM], [("ncclAllReduce", 3, 7, 0)], "ncclAllReduce of 3 float32, sum, operation 0"),
    "type": ([SUM], [("ncclAllReduce", 4, 2, 0)], "ncclAllReduce of 4 int32"),
    "op": ([SUM], [("ncclAllReduce", 4, 7, 2)], "ncclAllReduce of 4 float32, max"),
    "collective": ([SUM], [("ncclAllGather", 4, 7)], "ncclAllGather of 4 float32"),
    "number of calls": ([SUM], [SUM, SUM], "call 1 of 2"),
    "root": ([("ncclReduce", 4, 7, 0, 0)], [("ncclReduce", 4, 7, 0, 1)], "root 1"),
    "factor": ([("ncclAllReduce", 4, 7, 1.0)], [("ncclAllReduce", 4, 7, 2.0)], "0x40000000"),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_ranks_that_disagree(gpu: Library, name: str) -> None:
    *calls, message = DISAGREEMENTS[name]

    def work(member: Rank) -> None:
        data, result = np.zeros(4, np.float32), np.zeros(8, np.float32)
        gpu.ncclGroupStart()
        for call, count, *numbers in calls[member.rank]:
            if isinstance(numbers[-1], float):
                numbers[-1] = member.factor(np.array(numbers[-1:], np.float32), 7)
            assert member.call(call, data, result, size(count), *numbers) == 0
        assert gpu.code("ncclGroupEnd") == 7
        until(lambda: gpu.state(member.communicator) == 5)
        member.abort()

    on_ranks(gpu, 2, work, closes=False)
    misuse = gpu.misuse().splitlines()
    assert len(misuse) == 2
    assert all("ranks disagree" in line and message in line for line in misuse), misuse
    gpu.standin_forget()


def test_a_receive_that_does_not_fit(gpu: Library) -> None:
    def work(member: Rank) -> None:
        data = np.zeros(4, np.float32)
        gpu.ncclGroupStart()
        name = ("ncclSend", "ncclRecv")[member.rank]
        member.call(name, data, size(4 - member.rank), 7, 1 - member.rank)
        assert gpu.code("ncclGroupEnd") == 7
        until(lambda: gpu.state(member.communicator) == 5)
        member.abort()

    on_ranks(gpu, 2, work, closes=False)
    assert "a receive does not fit the send" in gpu.misuse()
    gpu.standin_forget()


Misuse = Callable[[Library, c_void_p], object]


def after_destroy(gpu: Library, stream: c_void_p) -> None:
    event = gpu.handle("cuEventCreate", 2)
    gpu.cuEventDestroy_v2(event)
    assert gpu.code("cuEventRecord", event, stream) == 400


def after_free(gpu: Library, stream: c_void_p) -> None:
    memory = gpu.handle("cuMemAlloc_v2", size(64))
    gpu.cuMemFree_v2(memory)
    gpu.cuMemsetD8Async(memory, 0, size(1), stream)


def written_after_free(gpu: Library, _: c_void_p) -> None:
    memory = gpu.handle("cuMemAlloc_v2", size(64))
    gpu.cuMemFree_v2(memory)
    ctypes.memset(memory, 0, 1)


def beyond(gpu: Library, stream: c_void_p) -> None:
    memory = gpu.allocate(8)
    gpu.cuMemsetD8Async(memory, 0, size(9), stream)
    gpu.cuStreamSynchronize(stream)
    gpu.standin_free(memory)


def behind(gpu: Library, _: c_void_p) -> None:
    memory = gpu.allocate(8)
    ctypes.memset(memory, 0, 9)
    gpu.standin_free(memory)


def without_context(gpu: Library, _: c_void_p) -> None:
    def target() -> None:
        assert gpu.code("cuEventCreate", byref(c_void_p()), 2) == 201

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()


def of_another_device(gpu: Library, stream: c_void_p) -> None:
    gpu.standin_devices(2)
    event = gpu.handle("cuEventCreate", 2)
    with gpu.device(1):
        assert gpu.code("cuStreamSynchronize", stream) == 400
        assert gpu.code("cuEventQuery", event) == 400
    gpu.cuEventDestroy_v2(event)
    gpu.standin_devices(1)


def left_in_context(gpu: Library, _: c_void_p) -> None:
    gpu.standin_devices(2)
    with gpu.device(1):
        event = gpu.handle("cuEventCreate", 2)
    with gpu.device(1):
        gpu.cuEventDestroy_v2(event)
    gpu.standin_devices(1)


def init_with(gpu: Library, **how: int) -> None:
    code = gpu.code(
        "ncclCommInitRankConfig", byref(c_void_p()), 1, gpu.unique_id(), 0, byref(config(**how))
    )
    assert code == 4


def while_capturing(gpu: Library, stream: c_void_p) -> None:
    event, status, mode = gpu.handle("cuEventCreate", 2), c_int(), c_int(2)
    gpu.standin_capture(stream, 1)
    gpu.cuStreamIsCapturing(stream, byref(status))
    assert status.value == 1
    assert gpu.code("cuEventQuery", event) == 900
    gpu.cuThreadExchangeStreamCaptureMode(byref(mode))
    assert mode.value == 0
    gpu.cuEventQuery(event)
    gpu.cuThreadExchangeStreamCaptureMode(byref(mode))
    gpu.standin_capture(stream, 0)
    gpu.cuEventQuery(event)
    gpu.cuEventDestroy_v2(event)


MISUSES: dict[str, tuple[Misuse, str]] = {
    "event destroyed": (after_destroy, "is a destroyed event"),
    "no stream": (lambda gpu, _: gpu.code("cuStreamDestroy_v2", c_void_p(77)), "is no stream"),
    "freed": (after_free, "which was freed"),
    "freed and written": (written_after_free, "was written after it was freed"),
    "freed twice": (lambda gpu, _: gpu.code("cuMemFree_v2", c_void_p(64)), "was not allocated"),
    "beyond": (beyond, "byte 0 of an allocation of 8"),
    "behind": (behind, "something was written behind"),
    "no context": (without_context, "no current context"),
    "other device": (of_another_device, "of device 0, while the current"),
    "left": (left_in_context, "still has 0 streams, 1 events"),
    "capturing": (while_capturing, "a stream is being captured"),
    "release": (lambda gpu, _: gpu.code("cuDevicePrimaryCtxRelease_v2", 3), "no device 3, of 1"),
    "blocking": (lambda gpu, _: init_with(gpu, blocking=1), "blocking is 1"),
    "magic": (lambda gpu, _: init_with(gpu, magic=1), "magic of a config is 0x1"),
    "no group": (lambda gpu, _: gpu.code("ncclGroupEnd"), "there is no group"),
    "no such call": (lambda gpu, _: gpu.standin_fail("cuNo", 1), "there is no call cuNo"),
    "no communicator": (lambda gpu, _: gpu.code("ncclCommAbort", c_void_p(8)), "no communicator"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISUSES)
def test_misuse(gpu: Library, name: str) -> None:
    provoke, message = MISUSES[name]
    with gpu.device(), gpu.stream() as stream:
        provoke(gpu, stream)
        gpu.cuStreamSynchronize(stream)
    assert message in gpu.misuse()
    gpu.standin_forget()


def in_progress(member: Rank, data: np.ndarray) -> None:
    event = member.gpu.handle("cuEventCreate", 2)
    assert member.call("ncclAllReduce", data, data, size(4), 7, 0) == 7
    member.gpu.cuEventRecord(event, member.stream)
    assert member.call("ncclAllReduce", data, data, size(4), 7, 0) == 4
    member.synchronize()
    member.gpu.cuEventDestroy_v2(event)


def null_input(member: Rank, data: np.ndarray) -> None:
    assert member.call("ncclAllReduce", None, data, size(4), 7, 0) == 7
    until(lambda: member.gpu.state(member.communicator) == 4)


def overlapping(member: Rank, data: np.ndarray) -> None:
    assert member.call("ncclAllReduce", data, address(data, 1), size(3), 7, 0) == 7
    until(lambda: member.gpu.state(member.communicator) == 4)


def under_way(member: Rank, data: np.ndarray) -> None:
    gate = threading.Event()
    member.gpu.enqueue(member.stream, lambda: gate.wait(10))
    assert member.call("ncclAllReduce", data, data, size(4), 7, 0) == 7
    member.ready()
    other = Rank(member.gpu, 1, 0, member.gpu.unique_id())
    other.ready()
    member.gpu.ncclCommDestroy(member.communicator)
    gate.set()
    member.gpu.cuStreamDestroy_v2(other.stream)
    member.communicator = other.communicator


def two_streams(member: Rank, data: np.ndarray) -> None:
    gate = threading.Event()
    with member.gpu.stream() as other:
        member.gpu.enqueue(member.stream, lambda: gate.wait(10))
        assert member.call("ncclAllReduce", data, data, size(4), 7, 0) == 7
        member.ready()
        first, member.stream = member.stream, other
        assert member.call("ncclAllReduce", data, data, size(4), 7, 0) == 7
        member.stream = first
        until(lambda: member.gpu.state(member.communicator) == 5)
        gate.set()


def destroyed_op(member: Rank, data: np.ndarray) -> None:
    op = member.factor(data, 7)
    assert member.call("ncclAllReduce", data, data, size(4), 8, op) == 4
    member.gpu.ncclRedOpDestroy(op, member.communicator)
    assert member.call("ncclAllReduce", data, data, size(4), 7, op) == 4


OPERATIONS: dict[str, tuple[Callable[[Rank, np.ndarray], None], list[str]]] = {
    "in progress": (in_progress, ["stream used while", "communicator used while"]),
    "null": (null_input, ["reads 16 bytes at null"]),
    "overlap": (overlapping, ["overlap"]),
    "under way": (under_way, ["1 operations are under way"]),
    "two streams": (two_streams, ["in another order"]),
    "destroyed op": (destroyed_op, ["of another type", "is a destroyed operation"]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_misuse_of_a_communicator(gpu: Library, name: str) -> None:
    provoke, messages = OPERATIONS[name]

    def work(member: Rank) -> None:
        provoke(member, np.zeros(5, np.float32))
        member.abort()

    on_ranks(gpu, 1, work, closes=False)
    misuse = gpu.misuse()
    for text in messages:
        assert text in misuse
    gpu.standin_forget()
