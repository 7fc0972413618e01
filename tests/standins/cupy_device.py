"""A stand-in for CuPy where there is no GPU: arrays in the memory of the stand-in for CUDA.

Only what `ringar.cupy`'s collectives and their tests use. What it has in common with CuPy is how it
behaves in time: whatever computes is enqueued on the current stream and runs later, a result can be
read only by `get()`, which waits for the current stream alone, and memory that is given back is
given to the next array of the same stream, at once. Current devices and streams are each thread's.
"""

from __future__ import annotations

import collections
import math
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import ml_dtypes  # noqa: F401 (makes "bfloat16" a dtype)
import numpy as np

from tests.standins.gpu_driver import Driver, ImmediateDriver


class DeviceCupy:
    """What `import cupy` gives."""

    def __init__(self, driver: Driver | ImmediateDriver) -> None:
        self.driver = driver
        self._thread = threading.local()
        self.pools: collections.defaultdict[tuple[int, int, int], list[int]]
        self.pools = collections.defaultdict(list)  # by device, stream and size
        self._default_streams: dict[int, Stream] = {}
        self.ndarray = Array
        self.float32 = np.float32
        runtime = SimpleNamespace(getDeviceCount=driver.device_count, CUDARuntimeError=RuntimeError)
        self.cuda = SimpleNamespace(
            runtime=runtime,
            Device=lambda number=None: Device(self, number),
            Stream=lambda non_blocking=False: Stream(self, self.device(), has_handle=True),
            get_current_stream=self.stream,
        )

    # What is current.

    def _stack(self, name: str) -> list[Any]:
        return self._thread.__dict__.setdefault(name, [])

    def device(self) -> int:
        return int((self._stack("devices") or [0])[-1])

    def stream(self) -> Stream:
        device = self.device()
        if stack := self._stack(f"streams of {device}"):
            return stack[-1]
        if device not in self._default_streams:
            self._default_streams[device] = Stream(self, device, has_handle=False)
        return self._default_streams[device]

    # Arrays.

    def empty(self, shape: Any, dtype: Any = float) -> Array:
        shape = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
        dtype = np.dtype(dtype)
        memory = Memory(self, math.prod(shape) * dtype.itemsize)
        return Array(self, memory, memory.pointer, shape, dtype, None)

    def asarray(self, source: Any) -> Array:
        if isinstance(source, Array):
            return source
        if hasattr(source, "__cuda_array_interface__"):
            return self._view(source)
        host = np.array(source, order="C")
        array = self.empty(host.shape, host.dtype)
        array._fill(lambda: host)
        return array

    def _view(self, source: Any) -> Array:
        interface = source.__cuda_array_interface__
        if (stream := interface.get("stream")) is not None:
            self.driver.synchronize(self.device(), 0 if stream == 1 else stream)
        dtype = np.dtype(interface["typestr"])
        return Array(
            self, source, interface["data"][0], interface["shape"], dtype, interface.get("strides")
        )

    def from_dlpack(self, source: Any) -> Array:
        _, device = source.__dlpack_device__()
        with self.cuda.Device(device):
            array: Array = source.__dlpack__(stream=self.stream().ptr or 1)
        return array

    def ascontiguousarray(self, array: Array) -> Array:
        assert array.ndim, "CuPy gives scalars a dimension here"
        return array if array.flags.c_contiguous else array.copy()

    # For tests alone.

    def produce(self, array: Array, values: np.ndarray, seconds: float) -> None:
        """A kernel that takes its time before it writes."""

        def kernel() -> np.ndarray:
            time.sleep(seconds)
            return values

        array._fill(kernel)

    def close(self) -> None:
        """Gives back all memory; there must be no arrays any more."""
        for stream in self._default_streams.values():
            stream.synchronize()
        for (device, _, _), pointers in self.pools.items():
            for pointer in pointers:
                self.driver.free(device, pointer)
        self.pools.clear()


class Device:
    """`cupy.cuda.Device`."""

    def __init__(self, cupy: DeviceCupy, number: int | None) -> None:
        self._cupy = cupy
        self.id = cupy.device() if number is None else int(number)

    def use(self) -> None:
        self._cupy._stack("devices")[:] = [self.id]

    def __enter__(self) -> Device:
        self._cupy._stack("devices").append(self.id)
        return self

    def __exit__(self, *_: Any) -> None:
        assert self._cupy._stack("devices").pop() == self.id


class Stream:
    """`cupy.cuda.Stream`; `has_handle`: other than a device's default stream."""

    def __init__(self, cupy: DeviceCupy, device: int, *, has_handle: bool) -> None:
        self._cupy = cupy
        self.device_id = device
        self.ptr = cupy.driver.make_stream(device) if has_handle else 0

    def __enter__(self) -> Stream:
        assert self._cupy.device() == self.device_id
        self._cupy._stack(f"streams of {self.device_id}").append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        assert self._cupy._stack(f"streams of {self.device_id}").pop() is self

    def synchronize(self) -> None:
        self._cupy.driver.synchronize(self.device_id, self.ptr)

    def enqueue(self, kernel: Callable[[], None]) -> None:
        self._cupy.driver.enqueue(self.device_id, self.ptr, kernel)

    def __del__(self) -> None:
        if getattr(self, "ptr", 0):
            self._cupy.driver.end_stream(self.device_id, self.ptr)


class Memory:
    """A block of the pool of the stream that is current."""

    def __init__(self, cupy: DeviceCupy, size: int) -> None:
        self._cupy = cupy
        self._stream = cupy.stream()  # kept, as its block goes back to it
        self.device = self._stream.device_id
        self._key = (self.device, self._stream.ptr, size)
        self.pointer = 0
        if size:
            pool = cupy.pools[self._key]
            self.pointer = pool.pop() if pool else cupy.driver.allocate(self.device, size)

    def __del__(self) -> None:
        if self.pointer:
            self._cupy.pools[self._key].append(self.pointer)


class Array:
    """`cupy.ndarray`."""

    def __init__(
        self,
        cupy: DeviceCupy,
        owner: Any,
        pointer: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
        strides: Sequence[int] | None,
    ) -> None:
        self._cupy = cupy
        self._owner = owner
        while isinstance(owner, Array):
            owner = owner._owner
        number = owner.device if isinstance(owner, Memory) else cupy.device()
        self.device = Device(cupy, number)
        self.data = SimpleNamespace(ptr=pointer, device_id=number)
        self.shape = shape
        self.dtype = dtype
        self._host = _on_host(pointer, shape, dtype, strides)

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    nbytes = property(lambda self: self.size * self.dtype.itemsize)
    flags = property(lambda self: self._host.flags)
    strides = property(lambda self: self._host.strides)
    T = property(lambda self: self._like(self._host.T))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        if index is not ...:  # behind numbers alone it makes arrays of what would be scalars
            index = (*index, ...) if isinstance(index, tuple) else (index, ...)
        return self._like(self._host[index])

    def view(self, dtype: Any) -> Array:
        return self._like(self._host.view(np.dtype(dtype)))

    def reshape(self, *shape: int) -> Array:
        return self._like(self._host.reshape(*shape))

    def _like(self, host: np.ndarray) -> Array:
        pointer = host.__array_interface__["data"][0] if self.data.ptr else 0
        return Array(self._cupy, self, pointer, host.shape, host.dtype, host.strides)

    def __setitem__(self, index: Any, value: Any) -> None:
        source = value._host if isinstance(value, Array) else value
        self[index]._fill(lambda: source)

    def _fill(self, source: Callable[[], Any]) -> None:
        """Enqueues a kernel that writes what `source` gives it."""
        host = self._host

        def kernel() -> None:
            host[...] = source()

        self._enqueue(kernel)

    def _enqueue(self, kernel: Callable[[], None]) -> None:
        stream = self._cupy.stream()
        assert stream.device_id == self.device.id, "another device is current"
        stream.enqueue(kernel)

    def _computed(self, dtype: np.dtype, compute: Callable[[np.ndarray], Any]) -> Array:
        result, host = self._cupy.empty(self.shape, dtype), self._host
        result._fill(lambda: compute(host))
        return result

    def copy(self) -> Array:
        return self._computed(self.dtype, lambda host: host)

    def astype(self, dtype: Any, copy: bool = True) -> Array:
        dtype = np.dtype(dtype)
        if dtype == self.dtype and not copy:
            return self
        return self._computed(dtype, lambda host: host.astype(dtype))

    def __mul__(self, factor: Any) -> Array:
        return self._computed(np.result_type(self.dtype, factor), lambda host: host * factor)

    def __add__(self, term: Any) -> Array:
        return self._computed(np.result_type(self.dtype, term), lambda host: host + term)

    def get(self) -> np.ndarray:
        """Waits for the current stream."""
        copied: list[np.ndarray] = []
        host = self._host
        self._enqueue(lambda: copied.append(np.array(host, order="C")))
        self._cupy.stream().synchronize()
        return copied[0]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.data.ptr, False),
            "version": 3,
            "strides": None if self.flags.c_contiguous else self.strides,
            "stream": self._cupy.stream().ptr or 1,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.id

    def __dlpack__(self, *, stream: int | None = None) -> Array:
        """No capsule: only the stand-in's `from_dlpack` takes it."""
        producer = self._cupy.stream()
        if stream is not None and stream != (producer.ptr or 1):
            producer.synchronize()
        return Array(self._cupy, self, self.data.ptr, self.shape, self.dtype, self.strides)


def _on_host(
    pointer: int, shape: tuple[int, ...], dtype: np.dtype, strides: Sequence[int] | None
) -> np.ndarray:
    """The same memory as an array of NumPy, which kernels use."""
    if not pointer:
        return np.empty(shape, dtype)
    described = {"data": (pointer, False), "shape": shape, "typestr": f"|V{dtype.itemsize}",
                 "strides": tuple(strides) if strides else None, "version": 3}  # fmt: skip
    raw = np.asarray(SimpleNamespace(__array_interface__=described))
    return raw.view(dtype)
