"""The stand-in for the CUDA driver (tests/standins/gpu), as Python sees it: by ctypes."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_NON_BLOCKING = 1
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Driver:
    """Streams, memory and kernels of the stand-in's devices.

    Args:
        path: of the stand-in's library.
    """

    def __init__(self, path: Path) -> None:
        self._library = library = ctypes.CDLL(str(path))
        library.standin_allocate.restype = ctypes.c_void_p
        library.standin_allocate.argtypes = [ctypes.c_size_t]
        library.standin_misuse.restype = library.standin_open.restype = ctypes.c_char_p
        self._waiting: dict[int, Callable[[], None]] = {}
        self._numbers = itertools.count(1)
        self._kernel = _KERNEL(self._run)
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self.errors: list[BaseException] = []  # of kernels

    def misuse(self) -> str:
        """What was misused so far, a line each."""
        return str(self._library.standin_misuse().decode())

    def open(self) -> str:
        """What was not given back."""
        return str(self._library.standin_open().decode())

    def forget(self) -> None:
        """Forgets misuses and counts."""
        self._library.standin_forget()

    def fail_later(self, name: str, nth: int) -> None:
        """Has the nth operation of NCCL from now on fail while it runs."""
        self._library.standin_fail_later(name.encode(), nth)

    def calls(self, name: str) -> int:
        """How often a function of CUDA or NCCL was called."""
        return int(self._library.standin_calls(name.encode()))

    def set_devices(self, count: int) -> None:
        """Says how many devices there are."""
        self._library.standin_devices(count)

    def device_count(self) -> int:
        """How many devices there are."""
        count = ctypes.c_int()
        self._check("cuInit", 0)
        self._check("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def make_stream(self, device: int) -> int:
        """A stream that does not wait for the default one."""
        stream = ctypes.c_void_p()
        with self._current(device):
            self._check("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))
        return stream.value or 0

    def end_stream(self, device: int, stream: int) -> None:
        """Gives a stream back."""
        with self._current(device):
            self._check("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def synchronize(self, device: int, stream: int) -> None:
        """Waits for a stream, and raises what a kernel has raised."""
        with self._current(device):
            self._check("cuStreamSynchronize", ctypes.c_void_p(stream))
        if self.errors:
            raise self.errors.pop()

    def allocate(self, device: int, size: int) -> int:
        """The address of new memory."""
        with self._current(device):
            pointer = self._library.standin_allocate(size)
        if not pointer:
            raise MemoryError(size)
        return int(pointer)

    def free(self, device: int, pointer: int) -> None:
        """Gives memory back at once: nothing may be under way there."""
        with self._current(device):
            self._library.standin_free(ctypes.c_void_p(pointer))

    def enqueue(self, device: int, stream: int, kernel: Callable[[], None]) -> None:
        """Has a function called in the order of a stream."""
        number = next(self._numbers)
        self._waiting[number] = kernel
        with self._current(device):
            self._library.standin_enqueue(
                ctypes.c_void_p(stream), self._kernel, ctypes.c_void_p(number)
            )

    def _run(self, number: int) -> None:
        try:
            self._waiting.pop(number)()
        except BaseException as error:
            self.errors.append(error)

    def close(self) -> None:
        """Gives the contexts back."""
        while self._contexts:
            self._check("cuDevicePrimaryCtxRelease_v2", self._contexts.popitem()[0])

    @contextlib.contextmanager
    def _current(self, device: int) -> Iterator[None]:
        if device not in self._contexts:
            context = ctypes.c_void_p()
            self._check("cuInit", 0)
            self._check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[device] = context
        self._check("cuCtxPushCurrent_v2", self._contexts[device])
        try:
            yield
        finally:
            self._check("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _check(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise RuntimeError(f"{name} has returned {code}")


class ImmediateDriver:
    """Streams that have always run all: for tests of Python that open no library."""

    def __init__(self, devices: int = 1) -> None:
        self._devices = devices
        self._blocks: dict[int, Any] = {}
        self._streams = itertools.count(1)

    def device_count(self) -> int:
        return self._devices

    def make_stream(self, device: int) -> int:
        return next(self._streams)

    def end_stream(self, device: int, stream: int) -> None:
        pass

    def synchronize(self, device: int, stream: int) -> None:
        pass

    def allocate(self, device: int, size: int) -> int:
        block = ctypes.create_string_buffer(b"\xab" * size, size)
        self._blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def free(self, device: int, pointer: int) -> None:
        del self._blocks[pointer]

    def enqueue(self, device: int, stream: int, kernel: Callable[[], None]) -> None:
        kernel()
