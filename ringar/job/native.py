"""The binding of libringar.so: its path, its C interface by ctypes, its TensorFlow ops."""

from __future__ import annotations

import ctypes
import functools
import math
import pathlib
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ringar import errors
from ringar.job import log

if TYPE_CHECKING:
    from ringar.job.cost_model import Tables

PATH = pathlib.Path(__file__).parents[1] / "libringar.so"

_log = log.logger(__name__)


class Config(ctypes.Structure):
    """Mirror `ringar_config` of ringar.h."""

    _fields_ = [
        *[
            (name, ctypes.c_int32)
            for name in (
                "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size",
                "segment_fd",
            )
        ],
        *[(name, ctypes.c_double) for name in ("start_timeout", "deadline", "stall_warning")],
        ("hosts", ctypes.POINTER(ctypes.c_int32)),
        ("link_library", ctypes.c_char_p),
        ("link_communicator", ctypes.c_void_p),
        ("algorithm", ctypes.c_char_p),
        ("recursive_doubling_bytes", ctypes.POINTER(ctypes.c_int64)),
        ("recursive_doubling_count", ctypes.c_int32),
        ("halving_doubling_bytes", ctypes.POINTER(ctypes.c_int64)),
        ("bucket_bytes", ctypes.c_int64),
        ("generation", ctypes.c_int32),
        ("link_listener", ctypes.c_int32),
        ("link_addresses", ctypes.c_char_p),
        ("link_secret", ctypes.c_char_p),
        ("cuda_library", ctypes.c_char_p),
        ("nccl_library", ctypes.c_char_p),
        ("past_caches_bytes", ctypes.c_int64),
        ("news_fd", ctypes.c_int32),
    ]  # fmt: skip

    def copy(self) -> Config:
        """Return a copy, which keeps the memory that this one refers to."""
        made = Config.from_buffer_copy(self)
        made._source = self
        return made

    def set_hosts(self, hosts: Sequence[int]) -> None:
        """Set the number of each rank's host."""
        self.hosts = (ctypes.c_int32 * len(hosts))(*hosts)

    def set_link(
        self, hosts: Sequence[int], library: pathlib.Path, communicator: int, tables: Tables
    ) -> None:
        """Set the fields that only a job of MPI needs: the hosts and the link between them."""
        self.set_hosts(hosts)
        self.link_library = str(library).encode()
        self.link_communicator = communicator
        self.set_tables(tables)

    def set_tables(self, tables: Tables) -> None:
        """Set up to how many bytes an algorithm is best, and the size of buckets."""
        self.recursive_doubling_bytes = _int64s(tables.recursive_doubling)
        self.halving_doubling_bytes = _int64s(tables.halving_doubling)
        self.recursive_doubling_count = len(tables.recursive_doubling)
        self.bucket_bytes = tables.bucket_bytes


class _Array(ctypes.Structure):
    _fields_ = [
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("ndims", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    ]


_NO_MEMORY = 1
"""A stand-in for the address of an empty array; the library does not read it."""

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64)
_WARN = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


@_WARN
def _warn(text: bytes) -> None:
    # The record has the rank, which native messages begin with.
    _log.warning("%s", re.sub(r"^rank \d+ \| ", "", text.decode(errors="replace")))


def _tensorflow() -> ModuleType:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            "ringar needs TensorFlow 2.16 or later with Keras 3, found none. "
            "Install one, for example with: pip install tensorflow keras"
        ) from error
    return tf


@functools.cache
def ops() -> ModuleType:
    """Return the TensorFlow ops of the library, as functions."""
    if not PATH.exists():
        raise ImportError(
            f"expected the native library at {PATH}, found none. "
            "In a checkout run `make`, or `pip install --editable .`; if ringar is installed, too, "
            "start the program from another folder."
        )
    tf = _tensorflow()
    module: ModuleType = tf.load_op_library(str(PATH))
    return module


def op(collective: str, *, wait: bool) -> Callable[..., Any]:
    """Return the function of a TensorFlow op, the blocking or the asynchronous one."""
    return getattr(ops(), f"ringar_{collective}" if wait else f"ringar_{collective}_async")


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library's C interface (tf_ops/include/ringar.h)."""
    ops()  # first: the library registers its ops when it is opened, if TensorFlow is there
    lib = ctypes.CDLL(str(PATH))
    for name in ("ringar_version", "ringar_cpu_level", "ringar_last_error"):
        getattr(lib, name).restype = ctypes.c_char_p
    lib.ringar_run.argtypes = [
        ctypes.c_char_p,
        ctypes.POINTER(_Array),
        ctypes.c_int32,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.c_int32,
        ctypes.POINTER(ctypes.c_int64),
        _ALLOCATE,
        ctypes.c_void_p,
    ]
    lib.ringar_run_on_gpu.argtypes = [*lib.ringar_run.argtypes, ctypes.c_int32, ctypes.c_void_p]
    lib.ringar_on_warning.argtypes = [_WARN]
    lib.ringar_start_timeline.argtypes = [ctypes.c_char_p, ctypes.c_int32]
    lib.ringar_inline_bytes.restype = ctypes.c_int64
    lib.ringar_take_memory.restype = ctypes.c_void_p
    lib.ringar_take_memory.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p)]
    lib.ringar_free_memory.argtypes = [ctypes.c_void_p]
    lib.ringar_open_window.argtypes = [
        ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p),
    ]  # fmt: skip
    lib.ringar_window_local.restype = ctypes.c_void_p
    lib.ringar_window_local.argtypes = [ctypes.c_void_p]
    lib.ringar_window_length.restype = ctypes.c_int64
    lib.ringar_window_length.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    lib.ringar_access_window.argtypes = [
        ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64,
        ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip
    lib.ringar_access_rows.argtypes = [
        ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64,
        ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip
    for name in ("ringar_close_window", "ringar_release_window"):
        getattr(lib, name).argtypes = [ctypes.c_void_p]
    lib.ringar_past_caches_bytes.restype = ctypes.c_int64
    lib.ringar_bucket_bytes.restype = ctypes.c_int64
    lib.ringar_steps.restype = ctypes.c_int64
    lib.ringar_stats.restype = ctypes.c_void_p
    lib.ringar_prepare.restype = ctypes.c_void_p
    lib.ringar_prepare.argtypes = [ctypes.c_char_p, ctypes.POINTER(_Array), ctypes.c_int32]
    if not lib.ringar_has_tensorflow_ops():
        raise ImportError(
            "expected TensorFlow's C API in this process (TensorFlow 2.16 or later), found only "
            f"a part of it in TensorFlow {_tensorflow().__version__}"
        )
    lib.ringar_on_warning(_warn)
    return lib


def forget_messages(source: int, tag: int) -> None:
    """Give back the memory of messages that this rank will not receive.

    Args:
        source: their sender's rank in the job.
        tag: their tag.
    """
    library().ringar_forget(source, tag)


def stop_warnings() -> None:
    """Let the library write its warnings to standard error: Python is about to end."""
    if library.cache_info().currsize:
        library().ringar_on_warning(_WARN())


def check(code: int) -> None:
    """Raise the exception for `code` with this thread's last error message; 0 is success."""
    if code:
        message = library().ringar_last_error().decode(errors="replace")
        raise errors.from_code(code, message)


def _int64s(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)


def _describe(
    inputs: Sequence[int], shapes: Sequence[Sequence[int]], outputs: Sequence[int] | None
) -> ctypes.Array[_Array]:
    arrays = (_Array * len(inputs))()
    for i, shape in enumerate(shapes):
        output = outputs[i] if outputs is not None else None
        arrays[i] = _Array(inputs[i], output, len(shape), _int64s(shape))
    return arrays


def _describe_numpy(
    inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None
) -> ctypes.Array[_Array]:
    return _describe(
        [array.ctypes.data for array in inputs],
        [array.shape for array in inputs],
        None if outputs is None else [array.ctypes.data for array in outputs],
    )


class _Memory:
    """Own memory of the pool of outputs; an array on it refers to this object."""

    def __init__(self, handle: int, address: int, size: int) -> None:
        self._handle, self._free = handle, library().ringar_free_memory
        self.__array_interface__ = {
            "data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        self._free(self._handle)


def empty(shape: Sequence[int], dtype: npt.DTypeLike) -> np.ndarray:
    """Return an array without values, in memory that the other ranks can write to if possible."""
    wanted, address = np.dtype(dtype), ctypes.c_void_p()
    size = int(math.prod(shape)) * wanted.itemsize
    handle = library().ringar_take_memory(size, ctypes.byref(address))
    if not handle or address.value is None:
        return np.empty(shape, wanted)
    return np.asarray(_Memory(handle, address.value, size)).view(wanted).reshape(shape)


GET, PUT, ADD, ATOMIC_ADD, RACY_ADD, FETCH_ADD, VERSIONS = range(7)
"""The kinds of access to a window: `ringar_access` of ringar.h."""


class Window:
    """Own a window of the library; arrays on its memory refer to this object.

    Args:
        spec: the line of text that tf_ops/engine/spec.h describes.
        length: the number of elements of this rank's part.
        chunk_bytes: the length of a chunk.
    """

    def __init__(self, spec: str, length: int, chunk_bytes: int) -> None:
        lib = library()
        self._handle = ctypes.c_void_p()
        self._access, self._release = lib.ringar_access_window, lib.ringar_release_window
        self._access_rows = lib.ringar_access_rows
        check(
            lib.ringar_open_window(spec.encode(), length, chunk_bytes, ctypes.byref(self._handle))
        )

    def length(self, rank: int) -> int:
        """Return the number of elements in the part of a rank."""
        return int(library().ringar_window_length(self._handle, rank))

    def local(self, dtype: np.dtype, length: int) -> np.ndarray:
        """Return an array on this rank's part."""
        address = library().ringar_window_local(self._handle)
        return np.asarray(_Part(self, address, length * dtype.itemsize)).view(dtype)

    def access(
        self,
        kind: int,
        rank: int,
        start: int,
        count: int,
        array: np.ndarray | None,
        versions: np.ndarray | None = None,
    ) -> None:
        """Read or write elements of the part of a rank."""
        code = self._access(
            self._handle,
            rank,
            kind,
            start,
            count,
            None if array is None else array.ctypes.data,
            None if versions is None else versions.ctypes.data,
        )
        if code:
            check(code)

    def access_rows(
        self,
        kind: int,
        rank: int,
        rows: np.ndarray,
        width: int,
        array: np.ndarray,
        before: np.ndarray | None = None,
    ) -> None:
        """Read or change rows of the part of a rank."""
        # Without an object of ctypes for each array: rows are often few.
        code = self._access_rows(
            self._handle,
            rank,
            kind,
            rows.__array_interface__["data"][0],
            rows.size,
            width,
            array.__array_interface__["data"][0],
            None if before is None else before.__array_interface__["data"][0],
        )
        if code:
            check(code)

    def close(self) -> None:
        """Close the window, with all ranks; its memory stays until the last array on it goes."""
        check(library().ringar_close_window(self._handle))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._release(self._handle)


class _Part:
    """Refer to a window as long as there is an array on its memory."""

    def __init__(self, window: Window, address: int, size: int) -> None:
        self._window = window
        self.__array_interface__ = {
            "data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3,
        }  # fmt: skip


class Prepared:
    """Prepare a collective that runs repeatedly on the same NumPy arrays.

    Args:
        spec: the line of text that tf_ops/engine/spec.h describes.
        inputs: C-contiguous arrays of one dtype; each run reads them.
        outputs: arrays for the results; each run writes them.
    """

    def __init__(
        self, spec: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        self.inputs, self.outputs = list(inputs), list(outputs)
        arrays = _describe_numpy(self.inputs, self.outputs)
        self._call = library().ringar_prepare(spec.encode(), arrays, len(inputs))
        if not self._call:
            raise errors.MismatchError(library().ringar_last_error().decode())
        # ctypes takes a reference as it is; of an address it makes an argument in each call.
        call = ctypes.byref(ctypes.c_char.from_address(self._call))
        self._run = functools.partial(library().ringar_run_prepared, call)

    def run(self) -> None:
        """Run the collective and wait for its end; raise as `ringar.allreduce`."""
        code = self._run()
        if code:
            check(code)

    def __del__(self) -> None:
        if getattr(self, "_call", None):
            library().ringar_release(ctypes.c_void_p(self._call))


def run(
    spec: str,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray] | None,
    *,
    splits: Sequence[int] | None = None,
    received_count: int = 0,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Run one collective on NumPy arrays and wait for its end.

    Args:
        spec: the line of text that tf_ops/engine/spec.h describes.
        inputs: C-contiguous arrays of one dtype.
        outputs: arrays for the results, or None if only the exchange tells their rows.
        splits: rows per rank.
        received_count: the number of row counts to return.

    Returns:
        The outputs, and the row counts received.
    """
    made: dict[int, np.ndarray] = {}

    def allocate(index: int, rows: int) -> int:
        try:
            made[index] = np.empty((rows, *inputs[index].shape[1:]), inputs[index].dtype)
        except MemoryError:
            return 0
        return _address(made[index].ctypes.data)

    arrays = _describe_numpy(inputs, outputs)
    received = _run(library().ringar_run, spec, arrays, allocate, splits, received_count)
    results = list(outputs) if outputs is not None else [made[i] for i in range(len(inputs))]
    return results, received


def run_on_gpu(
    spec: str,
    inputs: Sequence[int],
    shapes: Sequence[Sequence[int]],
    outputs: Sequence[int] | None,
    allocate: Callable[[int, int], int],
    device: int,
    stream: int,
    *,
    splits: Sequence[int] | None = None,
    received_count: int = 0,
) -> np.ndarray:
    """Enqueue one collective on arrays of a GPU, in the order of a stream.

    Args:
        spec: the line of text that tf_ops/engine/spec.h describes.
        inputs: the addresses of C-contiguous arrays of one dtype.
        shapes: the shapes of these arrays.
        outputs: addresses for the results, or None if only the exchange tells their rows.
        allocate: `(index, rows) -> address` of GPU memory for an output with so many rows. Any
            thread may call it; `run_on_gpu` raises its exceptions.
        device: the number of the GPU.
        stream: the address of a CUDA stream, 0 for the default one.
        splits: rows per rank.
        received_count: the number of row counts to return.

    Returns:
        The row counts received.
    """
    arrays = _describe(
        [_address(one) for one in inputs],
        shapes,
        None if outputs is None else [_address(one) for one in outputs],
    )
    return _run(
        library().ringar_run_on_gpu,
        spec,
        arrays,
        lambda index, rows: _address(allocate(index, rows)),
        splits,
        received_count,
        device,
        stream,
    )


def _address(of_array: int) -> int:
    # An empty array may have the address null, which stands for no array.
    return of_array or _NO_MEMORY


def _run(
    function: Callable[..., int],
    spec: str,
    arrays: ctypes.Array[_Array],
    allocate: Callable[[int, int], int],
    splits: Sequence[int] | None,
    received_count: int,
    *place: int,
) -> np.ndarray:
    # No exception may pass through native code: return a failure and raise the exception later.
    failures: list[BaseException] = []

    @_ALLOCATE
    def callback(_context: int, index: int, rows: int) -> int:
        try:
            return allocate(index, rows)
        except BaseException as error:
            failures.append(error)
            return 0

    received = np.zeros(received_count, np.int64)
    code = function(
        spec.encode(),
        arrays,
        len(arrays),
        _int64s(splits) if splits is not None else None,
        len(splits) if splits is not None else 0,
        received.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)) if received_count else None,
        callback,
        None,
        *place,
    )
    if failures:
        raise failures.pop()  # pop: a reference here would keep its frames alive
    check(code)
    return received


def synchronize_gpu() -> None:
    """Wait until all collectives that this rank has enqueued on GPUs have ended."""
    check(library().ringar_synchronize_gpu())
