"""The C interface of libringar.so for one rank: its functions by their names, called as by ctypes.

Results are codes; texts of errors are per thread. Pointers come as addresses, or as ctypes' arrays
and references.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from ringar.job.memory import array_at
from ringar.job.one_rank.absence import Absence
from ringar.job.one_rank.failure import (
    MISMATCH,
    NOT_INITIALIZED,
    OUT_OF_MEMORY,
    UNSUPPORTED,
    Failure,
)
from ringar.job.one_rank.request import Request, dtype_named, refused
from ringar.job.one_rank.timeline import Timeline
from ringar.job.one_rank.window import Window
from ringar.version import __version__

Function = TypeVar("Function", bound=Callable[..., Any])

_FREE_ROWS = ("allgather", "alltoall")
_COLLECTIVES = ("allreduce", "reducescatter", "allgather", "broadcast", "alltoall", "barrier")
"""The collectives of one rank, in the order of tf_ops/engine/types.h."""


def _reporting(function: Callable[..., None]) -> Callable[..., int]:
    """Let a method return a code, and keep the text of its error for `ringar_last_error`."""

    @functools.wraps(function)
    def call(self: Library, *arguments: Any) -> int:
        try:
            function(self, *arguments)
        except Failure as failure:
            self._thread.error = str(failure).encode()
            return failure.code
        return 0

    return call


class Library:
    """Answer the calls of ringar.h for a job of one rank.

    Args:
        absence: why there is no native library.
    """

    def __init__(self, absence: Absence) -> None:
        self.absence = absence
        self._thread = threading.local()
        self._lock = threading.Lock()
        self._is_running = False
        self._sets: set[int] = set()
        self._set_numbers: Iterator[int] = itertools.count()
        self._traffic: collections.Counter[tuple[int, str]] = collections.Counter()
        self._timeline = Timeline()
        self._handles = itertools.count(1)
        self._windows: dict[int, Window] = {}
        self._prepared: dict[int, tuple[str, list[Any]]] = {}
        self._asks_to_stop = self._stop_was_seen = False
        self._steps = 0

    def ringar_version(self) -> bytes:
        return __version__.encode()

    def ringar_cpu_level(self) -> bytes:
        return b"NumPy"

    def ringar_last_error(self) -> bytes:
        return bytes(getattr(self._thread, "error", b""))

    @_reporting
    def ringar_init(self, config: Any) -> None:
        size = config._obj.size
        if size != 1:
            raise Failure(UNSUPPORTED, self.absence.refusal(f"a job of {size} ranks"))
        self._asks_to_stop = self._stop_was_seen = False
        self._steps = 0
        self._set_numbers = itertools.count(1)
        self._sets = {0}
        self._is_running = True

    def ringar_shutdown(self) -> None:
        self._is_running = False
        for window in self._windows.values():
            window.is_shut_down = True

    def ringar_is_initialized(self) -> int:
        return int(self._is_running)

    def ringar_run(
        self,
        spec: bytes,
        arrays: Any,
        count: int,
        splits: Any,
        split_count: int,
        received: Any,
        allocate: Any,
        context: Any,
    ) -> int:
        return self._run(
            spec.decode(), list(arrays[:count]), list(splits[:split_count]) if splits else [],
            received, lambda index, rows: allocate(context, index, rows),
        )  # fmt: skip

    @_reporting
    def _run(
        self,
        spec: str,
        arrays: Sequence[Any],
        splits: list[int],
        received: Any,
        allocate: Callable[[int, int], int | None],
    ) -> None:
        begin = time.monotonic_ns()
        request = Request.parse(spec)
        self._require_set(request)
        dtype = dtype_named(request.dtype)
        shapes = [array.shape for array in arrays]
        request.inputs = [
            array_at(array.input, shape, dtype) for array, shape in zip(arrays, shapes, strict=True)
        ]
        request.splits = splits
        try:
            request.check()
            addresses = [
                _output(request, array, shape, functools.partial(allocate, i))
                for i, (array, shape) in enumerate(zip(arrays, shapes, strict=True))
            ]
            self._write(
                request,
                [array_at(to, s, dtype) for to, s in zip(addresses, shapes, strict=True)],
            )
        finally:
            self._timeline.add(request, begin)
        if received:
            for i, shape in enumerate(shapes):
                received[i] = shape[0]
        with self._lock:
            self._traffic[_COLLECTIVES.index(request.collective), request.name] += 1

    @_reporting
    def check(self, spec: str, shapes: Sequence[Sequence[int]]) -> None:
        """Fail if a collective cannot use arrays of these shapes, as running it would."""
        request = Request.parse(spec)
        self._require_set(request)
        value = np.zeros((), dtype_named(request.dtype))
        request.inputs = [np.broadcast_to(value, tuple(shape)) for shape in shapes]
        request.check()

    def _write(self, request: Request, outputs: Sequence[np.ndarray]) -> None:
        if not request.has_shares:
            request.write(outputs)
            return
        begins_step = request.control()[2]
        request.write_shares(outputs, self._asks_to_stop)
        with self._lock:
            self._stop_was_seen |= self._asks_to_stop
            self._steps += bool(begins_step)

    def _require_set(self, request: Request) -> None:
        if not self._is_running:
            text = f"ringar is not initialized: call ringar.init() before {request.collective}"
            raise Failure(NOT_INITIALIZED, text)
        if request.process_set not in self._sets:
            raise Failure(
                MISMATCH,
                "rank 0 | expected a process set that exists, received process set "
                f"{request.process_set}, which was never added or is removed",
            )

    def ringar_prepare(self, spec: bytes, arrays: Any, count: int) -> int:
        handle = next(self._handles)
        self._prepared[handle] = (spec.decode(), list(arrays[:count]))
        return handle

    def ringar_run_prepared(self, call: Any) -> int:
        spec, arrays = self._prepared[ctypes.addressof(call._obj)]
        return self._run(spec, arrays, [], None, lambda index, rows: None)

    def ringar_release(self, handle: Any) -> None:
        self._prepared.pop(handle.value, None)

    @_reporting
    def ringar_add_process_set(self, ranks: Any, count: int, number: Any) -> None:
        if not self._is_running:
            raise Failure(NOT_INITIALIZED, "call ringar.init() before add_process_set")
        if list(ranks[:count]) != [0]:
            why = "expected different ranks from 0 to 0, at least one, in a set that was not added"
            raise refused(f'add_process_set "{list(ranks[:count])}"', f"{why} before")
        number._obj.value = next(self._set_numbers)
        self._sets.add(number._obj.value)

    @_reporting
    def ringar_remove_process_set(self, number: int) -> None:
        if not self._is_running:
            raise Failure(NOT_INITIALIZED, "call ringar.init() before remove_process_set")
        if number == 0 or number not in self._sets:
            text = f"rank 0 | expected the id of an added process set, received {number}"
            raise Failure(MISMATCH, text)
        self._sets.remove(number)

    @_reporting
    def ringar_open_window(self, spec: bytes, length: int, chunk_bytes: int, handle: Any) -> None:
        request = Request.parse(spec.decode())
        self._require_set(request)
        window = Window(request.name, request.dtype, length, chunk_bytes, request.process_set)
        handle._obj.value = next(self._handles)
        self._windows[handle._obj.value] = window

    def ringar_window_local(self, handle: Any) -> int:
        return int(self._windows[handle.value].elements.ctypes.data)

    def ringar_window_length(self, handle: Any, rank: int) -> int:
        return self._windows[handle.value].elements.size

    @_reporting
    def ringar_access_window(
        self, handle: Any, rank: int, kind: int, start: int, count: int, array: Any, versions: Any
    ) -> None:
        self._windows[handle.value].access(rank, kind, start, count, array, versions)

    @_reporting
    def ringar_access_rows(
        self,
        handle: Any,
        rank: int,
        kind: int,
        rows: int,
        count: int,
        width: int,
        array: int,
        before: Any,
    ) -> None:
        self._windows[handle.value].access_rows(rank, kind, rows, count, width, array, before)

    def ringar_close_window(self, handle: Any) -> int:
        self._windows[handle.value].is_closed = True
        return 0

    def ringar_release_window(self, handle: Any) -> None:
        self._windows.pop(handle.value, None)

    @_reporting
    def ringar_start_timeline(self, path: bytes, rank: int) -> None:
        self._timeline.start(path.decode(), rank)

    def ringar_stop_timeline(self) -> None:
        self._timeline.stop()

    def ringar_stats(self, size: Any) -> int:
        with self._lock:
            lines = [
                f"{_COLLECTIVES[kind]} {count} 0 {name}\0"
                for (kind, name), count in sorted(self._traffic.items())
            ]
        text = "".join(lines).encode()
        self._thread.stats = ctypes.create_string_buffer(text, len(text) + 1)
        size._obj.value = len(text)
        return ctypes.addressof(self._thread.stats)

    def ringar_reset_stats(self) -> None:
        with self._lock:
            self._traffic.clear()

    def ringar_ask_to_stop(self, asks: int) -> None:
        if self._is_running:
            self._asks_to_stop = bool(asks)

    def ringar_stop_was_seen(self) -> int:
        return int(self._is_running and self._stop_was_seen)

    def ringar_steps(self) -> int:
        return self._steps if self._is_running else 0

    def ringar_begin_training(self) -> None:
        self._asks_to_stop = self._stop_was_seen = False

    def ringar_run_on_gpu(self, *arguments: Any) -> int:
        return self._refuse("collectives of arrays on a GPU")

    def ringar_synchronize_gpu(self) -> int:
        return 0

    @_reporting
    def _refuse(self, expected: str) -> None:
        raise Failure(UNSUPPORTED, f"rank 0 | {self.absence.refusal(expected)}")

    def ringar_on_warning(self, handler: object) -> None:
        """Warn of nothing: no rank is late."""

    def ringar_forget(self, rank: int, tag: int) -> None:
        """Forget nothing: no rank sends messages."""

    def ringar_take_memory(self, size: int, address: object) -> None:
        """Return no memory: no other rank writes to it."""

    def ringar_processor_quota(self) -> float:
        return math.inf

    def ringar_has_failed(self) -> int:
        return 0

    def ringar_has_calibrated(self) -> int:
        return 0

    def ringar_inline_bytes(self) -> int:
        return 0

    def ringar_past_caches_bytes(self) -> int:
        return 0

    def ringar_bucket_bytes(self) -> int:
        return 0


def _output(
    request: Request, array: Any, shape: Sequence[int], allocate: Callable[[int], int | None]
) -> int | None:
    """Return the address for a result, asking the caller for one that it has not given."""
    address: int | None = array.output
    if not address and request.collective in _FREE_ROWS:
        address = allocate(shape[0])
    if not address and 0 not in shape:
        text = f"rank 0 | {request.describe()}: expected memory for an output, received none"
        raise Failure(OUT_OF_MEMORY, text)
    return address
