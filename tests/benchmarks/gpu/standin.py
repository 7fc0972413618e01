"""Stand-ins for what benchmarks.gpu.worker uses, on NumPy: each rank is a thread.

What is enqueued on a stream runs when the stream is waited for, and not before: who reads a result
too early finds what was there. Nothing here says anything about times.
"""

from __future__ import annotations

import ctypes
import functools
import json
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.gpu import worker as gpu_worker
from benchmarks.harness.processes import JobFailedError

state = threading.local()
"""Of each thread: its `rank`, its `cupy`, and the NCCL calls of an open `group`."""


class Meeting:
    """Where the ranks exchange values."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=20)
        self._values: list[Any] = [None] * size

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


class Rank:
    """What the job is to one rank."""

    def __init__(self, rank: int, size: int, meetings: list[Meeting]) -> None:
        self.rank, self.size, self.local_rank = rank, size, rank
        self.meetings = meetings  # of the host, of ringar, of NCCL

    def barrier(self) -> None:
        self.allgather_object(None)

    def broadcast_object(self, value: Any) -> Any:
        return self.allgather_object(value)[0]

    def allgather_object(self, value: Any) -> list[Any]:
        return self.meetings[0].exchange(self.rank, value)


class Array(np.ndarray):
    """An array with CuPy's way to its address."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


class Stream:
    """Runs what is enqueued when it is waited for."""

    by_ptr: dict[int, Stream] = {}  # noqa: RUF012

    def __init__(self, *, non_blocking: bool) -> None:
        assert non_blocking
        self.ptr = id(self)
        self.by_ptr[self.ptr] = self
        self.queue: list[Callable[[], None]] = []

    def __enter__(self) -> Stream:
        state.cupy.current.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        assert state.cupy.current.pop() is self

    def synchronize(self) -> None:
        queue, self.queue = self.queue, []
        for function in queue:
            function()


class Event:
    def __init__(self) -> None:
        self.at = float("nan")

    def record(self, stream: Stream) -> None:
        def stamp() -> None:
            self.at = time.perf_counter()

        stream.queue.append(stamp)


class Device:
    numbers: list[int] = []  # noqa: RUF012

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.pci_bus_id = f"0000:{number:02x}:00.0"

    def use(self) -> None:
        self.numbers.append(self.number)

    def synchronize(self) -> None: ...


class Cupy:
    """What `import cupy` gives a rank."""

    __version__ = "stand-in"

    def __init__(self, gpus: int) -> None:
        self.current: list[Stream] = []
        runtime = SimpleNamespace(
            getDeviceCount=lambda: gpus,
            getDeviceProperties=lambda number: {"name": b"stand-in"},
            driverGetVersion=lambda: 12080,
            runtimeGetVersion=lambda: 12090,
            memcpyDeviceToDevice=3,
            memcpyAsync=_copy,
        )
        self.cuda = SimpleNamespace(
            runtime=runtime, Device=Device, Stream=Stream, Event=Event,
            get_elapsed_time=lambda first, last: 1e3 * (last.at - first.at),
        )  # fmt: skip

    def asarray(self, array: Any) -> Array:
        return np.array(array).view(Array)

    def empty_like(self, array: Any) -> Array:
        return np.full(array.shape, -7, array.dtype).view(Array)

    def ones(self, count: int, dtype: str) -> Array:
        return np.ones(count, dtype).view(Array)


def _view(ptr: int, count: int, dtype: Any) -> np.ndarray:
    length = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * length).from_address(ptr), dtype)


def _copy(target: int, source: int, length: int, kind: int, stream: int) -> None:
    assert kind == 3
    bytes_of = functools.partial(_view, count=length, dtype="uint8")
    Stream.by_ptr[stream].queue.append(
        lambda: np.copyto(bytes_of(ptr=target), bytes_of(ptr=source))
    )


def result_of(collective: str, inputs: list[np.ndarray], rank: int) -> np.ndarray:
    """The result of a rank, given the inputs of all."""
    if collective == "broadcast":
        return inputs[0]
    if collective == "allgather":
        return np.concatenate(inputs)
    if collective == "alltoall":
        return np.concatenate([np.split(array, len(inputs))[rank] for array in inputs])
    with np.errstate(over="ignore"):
        total = np.asarray(functools.reduce(np.add, inputs))
    return total if collective == "allreduce" else np.split(total, len(inputs))[rank]


Spoil = Callable[[int, int, list[Any]], None]
"""Given the rank, the number of its collective, and the results, may change them."""


class Ringar:
    """`ringar.cupy`; a collective is enqueued on the current stream."""

    def __init__(self, spoil: Spoil | None = None) -> None:
        self._spoil = spoil or (lambda rank, number, results: None)
        self._counts: dict[int, int] = {}
        self.synchronized = 0

    def _enqueue(self, collective: str, inputs: list[Any], outputs: list[Any]) -> list[Any]:
        rank: Rank = state.rank

        def run() -> None:
            number = self._counts[rank.rank] = self._counts.get(rank.rank, 0) + 1
            inputs_of_all = rank.meetings[1].exchange(
                rank.rank, [np.array(array) for array in inputs]
            )
            for output, *of_all in zip(outputs, *inputs_of_all, strict=True):
                output[...] = result_of(collective, of_all, rank.rank)
            self._spoil(rank.rank, number, outputs)

        state.cupy.current[-1].queue.append(run)
        return outputs

    def allreduce(self, array: Any, op: Any, *, out: Any = None) -> Any:
        assert op.value == "sum"
        return self._enqueue("allreduce", [array], [np.empty_like(array) if out is None else out])[
            0
        ]

    def grouped_allreduce(self, arrays: list[Any], op: Any, *, out: list[Any]) -> list[Any]:
        assert op.value == "sum"
        return self._enqueue("allreduce", arrays, out)

    def reducescatter(self, array: Any, op: Any, *, out: Any) -> Any:
        assert op.value == "sum"
        return self._enqueue("reducescatter", [array], [out])[0]

    def broadcast(self, array: Any, root_rank: int, *, out: Any) -> Any:
        assert root_rank == 0
        return self._enqueue("broadcast", [array], [out])[0]

    def allgather(self, array: Any) -> Any:
        output = np.empty(array.size * state.rank.size, array.dtype)
        return self._enqueue("allgather", [array], [output.view(Array)])[0]

    def alltoall(self, array: Any) -> Any:
        return self._enqueue("alltoall", [array], [np.empty_like(array)])[0]

    def synchronize(self) -> None:
        self.synchronized += 1


class Nccl:
    """`cupy.cuda.nccl`."""

    NCCL_FLOAT32, NCCL_FLOAT16, NCCL_SUM = 7, 6, 0
    available = True

    def get_unique_id(self) -> bytes:
        assert state.rank.rank == 0
        return b"id" * 64

    def groupStart(self) -> None:
        assert state.group is None
        state.group = []

    def groupEnd(self) -> None:
        calls, state.group = state.group, None
        moves = [call[1:] for call in calls if call[0] in ("send", "recv")]
        for call in calls:
            if call[0] not in ("send", "recv"):
                _collective(*call)
        if moves:
            _exchange(moves)

    def NcclCommunicator(self, size: int, unique: bytes, rank: int) -> Communicator:
        assert (unique, size, rank) == (b"id" * 64, state.rank.size, state.rank.rank)
        return Communicator()


DTYPES = {7: "float32", 6: "float16"}


def _collective(collective: str, send: Any, receive: Any, stream: int) -> None:
    rank: Rank = state.rank

    def run() -> None:
        entries = rank.meetings[2].exchange(rank.rank, (collective, np.array(_view(*send))))
        assert {name for name, _ in entries} == {collective}
        np.copyto(
            _view(*receive), result_of(collective, [array for _, array in entries], rank.rank)
        )

    Stream.by_ptr[stream].queue.append(run)


def _exchange(moves: list[Any]) -> None:
    """Sends and receives of one group: (kind, array, peer, stream) each."""
    rank: Rank = state.rank

    def run() -> None:
        messages = {
            peer: np.array(_view(*array)) for kind, array, peer, _ in moves if kind == "send"
        }
        messages_of = rank.meetings[2].exchange(rank.rank, messages)
        for kind, array, peer, _ in moves:
            if kind == "recv":
                np.copyto(_view(*array), messages_of[peer][rank.rank])

    Stream.by_ptr[moves[0][-1]].queue.append(run)


class Communicator:
    """`NcclCommunicator`, with its argument order."""

    destroyed = 0

    def _call(self, *call: Any) -> None:
        if state.group is None:
            _collective(*call)
        else:
            state.group.append(call)

    def allReduce(self, send: int, recv: int, count: int, kind: int, op: int, stream: int) -> None:
        assert op == Nccl.NCCL_SUM
        dtype = DTYPES[kind]
        self._call("allreduce", (send, count, dtype), (recv, count, dtype), stream)

    def reduceScatter(
        self, send: int, recv: int, count: int, kind: int, op: int, stream: int
    ) -> None:
        assert op == Nccl.NCCL_SUM
        dtype = DTYPES[kind]
        blocks = (send, count * state.rank.size, dtype)
        self._call("reducescatter", blocks, (recv, count, dtype), stream)

    def allGather(self, send: int, recv: int, count: int, kind: int, stream: int) -> None:
        dtype = DTYPES[kind]
        blocks = (recv, count * state.rank.size, dtype)
        self._call("allgather", (send, count, dtype), blocks, stream)

    def broadcast(
        self, send: int, recv: int, count: int, kind: int, root: int, stream: int
    ) -> None:
        assert root == 0
        dtype = DTYPES[kind]
        self._call("broadcast", (send, count, dtype), (recv, count, dtype), stream)

    def send(self, ptr: int, count: int, kind: int, peer: int, stream: int) -> None:
        state.group.append(("send", "send", (ptr, count, DTYPES[kind]), peer, stream))

    def recv(self, ptr: int, count: int, kind: int, peer: int, stream: int) -> None:
        state.group.append(("recv", "recv", (ptr, count, DTYPES[kind]), peer, stream))

    def destroy(self) -> None:
        Communicator.destroyed += 1


def run_ranks(
    ranks: int, options: dict[str, Any], deadline: float, env: dict[str, str], gpus: int = 1
) -> list[dict[str, Any]]:  # fmt: skip
    """As benchmarks.gpu.run_ranks, with threads."""
    meetings = [Meeting(ranks) for _ in range(3)]
    reports: dict[int, Any] = {}
    errors: list[str] = []

    def run(rank: int) -> None:
        state.rank, state.cupy, state.group = Rank(rank, ranks, meetings), Cupy(gpus), None
        try:
            reports[rank] = json.loads(
                json.dumps(gpu_worker.measure(state.rank, state.cupy, options))
            )
        except Exception as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise JobFailedError(errors[0])
    return [reports[rank] for rank in range(ranks)]
