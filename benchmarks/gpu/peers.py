"""The peers on GPUs: ringar, NCCL through CuPy's bindings, and a copy on the device.

A peer has a method for each collective of `benchmarks.harness.definitions`. The method gets the
arrays of a case and returns a function. Each call of that function enqueues the collective on the
peer's stream and returns the arrays in which the results will be.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from benchmarks.harness.definitions import ROOT_RANK

Arrays = list[Any]
Run = Callable[[], Arrays]


class Ranks(Protocol):
    """The ranks of a job, as one of them sees them."""

    rank: int
    size: int
    local_rank: int

    def barrier(self) -> None: ...
    def broadcast_object(self, value: Any) -> Any: ...
    def allgather_object(self, value: Any) -> list[Any]: ...


class Peer:
    """The base of all peers.

    Making one must need no other rank: what does is done by `connect`, which no rank begins before
    all have made theirs. Either raises where the peer cannot be measured.
    """

    title = ""
    communicates = True

    def __init__(self, cupy: Any, ranks: Ranks) -> None:
        self._cupy, self._ranks = cupy, ranks
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def connect(self) -> None:
        """Meets the other ranks."""

    def check(self) -> None:
        """Raises if anything that was enqueued has failed."""

    def close(self) -> None:
        """Releases what Python does not release by itself."""

    def run(self, collective: str, inputs: Arrays, outputs: Arrays) -> Run:
        """Returns a function that enqueues a collective."""
        run: Run = getattr(self, collective)(inputs, outputs)
        return run


class Ringar(Peer):
    """ringar.cupy, on a stream that is the caller's current one."""

    title = "ringar"

    def __init__(self, cupy: Any, ranks: Ranks) -> None:
        super().__init__(cupy, ranks)
        from ringar.collectives.ops import Sum

        self._sum = Sum
        self._ringar = importlib.import_module("ringar.cupy")

    def connect(self) -> None:
        # The first collective opens NCCL, and fails on all ranks if NCCL cannot be used here.
        with self.stream:
            array = self._cupy.ones(1, "float32")
            self._ringar.allreduce(array, op=self._sum)
        self.check()

    def check(self) -> None:
        self._ringar.synchronize()

    def allreduce(self, inputs: Arrays, outputs: Arrays) -> Run:
        of, op = self._ringar, self._sum
        if len(inputs) > 1:
            return lambda: list(of.grouped_allreduce(inputs, op=op, out=outputs))
        return lambda: [of.allreduce(inputs[0], op=op, out=outputs[0])]

    def allgather(self, inputs: Arrays, outputs: Arrays) -> Run:
        return lambda: [self._ringar.allgather(inputs[0])]

    def reducescatter(self, inputs: Arrays, outputs: Arrays) -> Run:
        of, op = self._ringar, self._sum
        return lambda: [of.reducescatter(inputs[0], op=op, out=outputs[0])]

    def broadcast(self, inputs: Arrays, outputs: Arrays) -> Run:
        return lambda: [self._ringar.broadcast(inputs[0], ROOT_RANK, out=outputs[0])]

    def alltoall(self, inputs: Arrays, outputs: Arrays) -> Run:
        return lambda: [self._ringar.alltoall(inputs[0])]


class Nccl(Peer):
    """The same through cupy.cuda.nccl."""

    title = "NCCL (CuPy)"

    def __init__(self, cupy: Any, ranks: Ranks) -> None:
        super().__init__(cupy, ranks)
        self._nccl = nccl = importlib.import_module("cupy.cuda.nccl")
        if not nccl.available:
            raise ImportError("CuPy finds no NCCL")
        self._id = nccl.get_unique_id() if ranks.rank == 0 else None
        self._types = {"float32": nccl.NCCL_FLOAT32, "float16": nccl.NCCL_FLOAT16}
        self._comm: Any = None

    def connect(self) -> None:
        unique = self._ranks.broadcast_object(self._id)
        self._comm = self._nccl.NcclCommunicator(self._ranks.size, unique, self._ranks.rank)

    def close(self) -> None:
        if self._comm is not None:
            self._comm.destroy()

    def _enqueue(self, calls: Sequence[tuple[Any, ...]], outputs: Arrays) -> Run:
        """Calls, each a function and its arguments, in a group if there are several.

        Pointers and the rest are found before anything is timed: what is left is CuPy's own call.
        """
        start, end = self._nccl.groupStart, self._nccl.groupEnd
        (function, *arguments), *rest = calls

        def call() -> Arrays:
            function(*arguments)
            return outputs

        def group() -> Arrays:
            start()
            for function, *arguments in calls:
                function(*arguments)
            end()
            return outputs

        return group if rest else call

    def _type(self, array: Any) -> int:
        return int(self._types[array.dtype.name])

    def allreduce(self, inputs: Arrays, outputs: Arrays) -> Run:
        how = (self._nccl.NCCL_SUM, self.stream.ptr)
        calls = [
            (self._comm.allReduce, x.data.ptr, y.data.ptr, x.size, self._type(x), *how)
            for x, y in zip(inputs, outputs, strict=True)
        ]
        return self._enqueue(calls, outputs)

    def allgather(self, inputs: Arrays, outputs: Arrays) -> Run:
        (source,), (target,) = inputs, outputs
        args = (source.data.ptr, target.data.ptr, source.size, self._type(source))
        return self._enqueue([(self._comm.allGather, *args, self.stream.ptr)], outputs)

    def reducescatter(self, inputs: Arrays, outputs: Arrays) -> Run:
        (source,), (target,) = inputs, outputs
        kind = self._type(source)
        args = (source.data.ptr, target.data.ptr, target.size, kind, self._nccl.NCCL_SUM)
        return self._enqueue([(self._comm.reduceScatter, *args, self.stream.ptr)], outputs)

    def broadcast(self, inputs: Arrays, outputs: Arrays) -> Run:
        (source,), (target,) = inputs, outputs
        args = (source.data.ptr, target.data.ptr, source.size, self._type(source), ROOT_RANK)
        return self._enqueue([(self._comm.broadcast, *args, self.stream.ptr)], outputs)

    def alltoall(self, inputs: Arrays, outputs: Arrays) -> Run:
        (source,), (target,) = inputs, outputs
        count, comm = source.size // self._ranks.size, self._comm
        calls = []
        for rank in range(self._ranks.size):
            at = rank * count * source.itemsize
            how = (count, self._type(source), rank, self.stream.ptr)
            calls += [
                (comm.send, source.data.ptr + at, *how),
                (comm.recv, target.data.ptr + at, *how),
            ]
        return self._enqueue(calls, outputs)


class Copy(Peer):
    """As many bytes as the size counts, from one array on the device to another."""

    title = "copy on the device"
    communicates = False

    def run(self, collective: str, inputs: Arrays, outputs: Arrays) -> Run:
        source, target = inputs[0], outputs[0]
        if source.nbytes != target.nbytes:
            source = max(source, target, key=lambda array: array.nbytes).copy()
            target = self._cupy.empty_like(source)
        runtime, arrays = self._cupy.cuda.runtime, [target, source]
        args = (target.data.ptr, source.data.ptr, source.nbytes, runtime.memcpyDeviceToDevice)

        def run() -> Arrays:
            runtime.memcpyAsync(*args, self.stream.ptr)
            return arrays

        return run


PEERS: dict[str, type[Peer]] = {"ringar": Ringar, "nccl": Nccl, "copy": Copy}
