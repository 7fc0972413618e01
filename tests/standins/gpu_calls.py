"""The stand-in's functions from Python, and ranks that are threads, for tests of the stand-in."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

IN_PROGRESS = 7
TYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
DTYPES = [*map(np.dtype, TYPES), np.dtype(ml_dtypes.bfloat16)]
"""By their number in NCCL."""
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}

KERNEL = ctypes.CFUNCTYPE(None, c_void_p)
_TEXTS = ("standin_open", "standin_misuse", "ncclGetErrorString", "ncclGetLastError")


def size(count: int) -> c_size_t:
    return c_size_t(count)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", c_char * 128),)


class Config(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        *((name, c_int) for name in ("blocking", "cga_cluster_size", "min_ctas", "max_ctas")),
        ("net_name", c_char_p),
        ("split_share", c_int),
    )


def config(blocking: int = 0, magic: int = 0xCAFEBEEF) -> Config:
    unsaid = -(2**31)
    size = ctypes.sizeof(Config)
    return Config(size, magic, 21900, blocking, unsaid, unsaid, unsaid, None, unsaid)


def address(array: np.ndarray | int | None, offset: int = 0) -> c_void_p:
    """Of an array's first element, or of one that many behind it."""
    if not isinstance(array, np.ndarray):
        return c_void_p(array)
    return c_void_p(array.ctypes.data + offset * array.itemsize)


class Library:
    """Calls by name, which expect success: `gpu.cuStreamSynchronize(stream)`.

    `gpu.code("cuEventQuery", event)` returns the code instead. Addresses and handles are
    `c_void_p`, counts `c_size_t`, anything else an int.
    """

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        for name in _TEXTS:
            getattr(self._library, name).restype = c_char_p
        self._library.standin_allocate.restype = c_void_p
        self._library.standin_allocate.argtypes = [c_size_t]
        self._library.standin_enqueue.argtypes = [c_void_p, KERNEL, c_void_p]
        self._library.standin_enqueue.restype = None
        self._library.standin_timeout.argtypes = [ctypes.c_double]
        self._library.ncclCommInitRankConfig.argtypes = [
            POINTER(c_void_p), c_int, UniqueId, c_int, POINTER(Config)
        ]  # fmt: skip
        self._kernels: list[Any] = []

    def code(self, name: str, *arguments: Any) -> int:
        values = (
            argument.encode() if isinstance(argument, str) else argument for argument in arguments
        )
        return int(getattr(self._library, name)(*values))

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            code = self.code(name, *arguments)
            if code and name.startswith(("cu", "nccl")):
                raise RuntimeError(f"{name} has returned {code}")

        return call

    def text(self, name: str, *arguments: Any) -> str:
        answer: bytes = getattr(self._library, name)(*arguments)
        return answer.decode()

    def misuse(self) -> str:
        return self.text("standin_misuse")

    def open(self) -> str:
        return self.text("standin_open")

    def allocate(self, size: int) -> c_void_p:
        return c_void_p(self._library.standin_allocate(size))

    def enqueue(self, stream: c_void_p | None, function: Callable[[], object]) -> None:
        kernel = KERNEL(lambda _: function() and None)
        self._kernels.append(kernel)
        self._library.standin_enqueue(stream, kernel, None)

    def handle(self, name: str, *arguments: Any) -> c_void_p:
        """What a call writes to its first argument."""
        pointer = c_void_p()
        getattr(self, name)(byref(pointer), *arguments)
        return pointer

    @contextmanager
    def device(self, number: int = 0) -> Iterator[None]:
        """Its context, retained and current."""
        self.cuInit(0)
        self.cuCtxPushCurrent_v2(self.handle("cuDevicePrimaryCtxRetain", number))
        try:
            yield
        finally:
            self.cuCtxPopCurrent_v2(byref(c_void_p()))
            self.cuDevicePrimaryCtxRelease_v2(number)

    @contextmanager
    def stream(self) -> Iterator[c_void_p]:
        queue = self.handle("cuStreamCreate", 1)
        try:
            yield queue
        finally:
            self.cuStreamDestroy_v2(queue)

    def unique_id(self) -> UniqueId:
        identifier = UniqueId()
        self.ncclGetUniqueId(byref(identifier))
        return identifier

    def state(self, communicator: c_void_p) -> int:
        """When it is no longer in progress."""
        code, end = c_int(IN_PROGRESS), time.monotonic() + 20
        while code.value == IN_PROGRESS and time.monotonic() < end:
            self.ncclCommGetAsyncError(communicator, byref(code))
            time.sleep(0.0002)
        return code.value


class Rank:
    """A rank's communicator, and a stream."""

    def __init__(self, gpu: Library, size: int, rank: int, unique: UniqueId) -> None:
        self.gpu, self.size, self.rank = gpu, size, rank
        self.stream = gpu.handle("cuStreamCreate", 1)
        self.communicator = c_void_p()
        code = gpu.code(
            "ncclCommInitRankConfig", byref(self.communicator), size, unique, rank, byref(config())
        )
        assert code == IN_PROGRESS, code

    def ready(self) -> None:
        state = self.gpu.state(self.communicator)
        assert state == 0, (state, self.gpu.text("ncclGetLastError", None))

    def call(self, name: str, *arguments: Any) -> int:
        """A collective: arrays, counts and numbers as they are."""
        values = [
            address(argument) if argument is None or isinstance(argument, np.ndarray) else argument
            for argument in arguments
        ]
        return self.gpu.code(name, *values, self.communicator, self.stream)

    def run(self, name: str, *arguments: Any) -> None:
        code = self.call(name, *arguments)
        assert code == IN_PROGRESS, (name, code, self.gpu.misuse())
        self.synchronize()

    def factor(self, scalar: np.ndarray, number: int) -> c_int:
        """The operation that adds up what it multiplies with an array's first element."""
        op = c_int()
        self.gpu.ncclRedOpCreatePreMulSum(byref(op), address(scalar), number, 1, self.communicator)
        return op

    def end_group(self) -> None:
        assert self.gpu.code("ncclGroupEnd") == IN_PROGRESS
        self.synchronize()

    def synchronize(self) -> None:
        self.ready()
        self.gpu.cuStreamSynchronize(self.stream)
        self.ready()

    def close(self) -> None:
        assert self.gpu.code("ncclCommFinalize", self.communicator) == IN_PROGRESS
        self.ready()
        self.gpu.ncclCommDestroy(self.communicator)
        self.gpu.cuStreamDestroy_v2(self.stream)

    def abort(self) -> None:
        self.gpu.ncclCommAbort(self.communicator)
        self.gpu.cuStreamSynchronize(self.stream)
        self.gpu.cuStreamDestroy_v2(self.stream)


def on_ranks(gpu: Library, size: int, work: Callable[[Rank], Any], *, closes: bool = True) -> list:
    """What `work` returns on each rank, in threads. It closes the ranks itself if not `closes`."""
    unique = gpu.unique_id()
    results: list[Any] = [None] * size
    failures: list[BaseException] = []

    def run_rank(rank: int) -> None:
        try:
            with gpu.device():
                member = Rank(gpu, size, rank, unique)
                member.ready()
                results[rank] = work(member)
                if closes:
                    member.close()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run_rank, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 30
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads), gpu.misuse()
    return results
