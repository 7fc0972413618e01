"""The binding of libringar.so: its path, its C interface by ctypes, its TensorFlow ops."""

from __future__ import annotations

import ctypes
import functools
import math
import pathlib
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from ringar import errors
from ringar.job import log, tensorflow
from ringar.job.memory import Memory
from ringar.job.native_config import Config as Config
from ringar.job.native_config import int64s
from ringar.job.one_rank import absence as absences
from ringar.job.one_rank.library import Library

PATH = pathlib.Path(__file__).parents[1] / "libringar.so"
OPS_PATH = PATH.with_name("libringar_tensorflow.so")
"""The library that TensorFlow opens, and so gets the ops of the other."""

_log = log.logger(__name__)


class Description(ctypes.Structure):
    """Describe an array of a collective and the place of its result, by their addresses."""

    _fields_ = [
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("ndims", ctypes.c_int32),
        ("dims", ctypes.c_void_p),  # an address, which NumPy can write into a table
    ]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the array's dimensions."""
        return tuple((ctypes.c_int64 * self.ndims).from_address(self.dims)) if self.ndims else ()


_NO_MEMORY = 1
"""A stand-in for the address of an empty array; the library does not read it."""

ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64)
NO_CALLBACK = ALLOCATE()
_WARN = ctypes.CFUNCTYPE(None, ctypes.c_char_p)

_NO_ROWS = np.zeros(0, np.int64)
LEAST_POOLED = 256 << 10
"""The fewest bytes for which the pool of outputs has memory (tf_ops/engine/output_pool.h)."""


@_WARN
def _warn(text: bytes) -> None:
    # The record has the rank, which native messages begin with.
    _log.warning("%s", re.sub(r"^rank \d+ \| ", "", text.decode(errors="replace")))


@functools.cache
def absence() -> absences.Absence | None:
    """Return why this installation has no library, and is for one rank; None: it has one."""
    return absences.absence(PATH)


@functools.cache
def ops() -> ModuleType:
    """Import TensorFlow, and return the ops of the library, as functions.

    Raises:
        UnsupportedError: this installation has no library.
    """
    tf = tensorflow.load()
    if (why := absence()) is not None:
        raise errors.UnsupportedError(why.refusal("an op of its own"))
    lib = library()  # first: it must be in the process when TensorFlow opens the other
    module: ModuleType = tf.load_op_library(str(OPS_PATH))
    if not lib.ringar_has_tensorflow_ops():
        raise ImportError(
            "expected TensorFlow's C API in this process (TensorFlow 2.16 or later), found only "
            f"a part of it in TensorFlow {tf.__version__}"
        )
    return module


def op(collective: str, *, wait: bool) -> Callable[..., Any]:
    """Return the function of a TensorFlow op, the blocking or the asynchronous one."""
    return getattr(ops(), f"ringar_{collective}" if wait else f"ringar_{collective}_async")


_P, _TEXT, _I32, _I64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64
_ARRAYS, _P_I64, _P_P = ctypes.POINTER(Description), ctypes.POINTER(_I64), ctypes.POINTER(_P)
_RUN = [_TEXT, _ARRAYS, _I32, _P_I64, _I32, _P_I64, ALLOCATE, _P]
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ringar_version": (_TEXT, []),
    "ringar_cpu_level": (_TEXT, []),
    "ringar_last_error": (_TEXT, []),
    "ringar_run": (None, _RUN),
    "ringar_run_on_gpu": (None, [*_RUN, _I32, _P]),
    "ringar_on_warning": (None, [_WARN]),
    "ringar_start_timeline": (None, [_TEXT, _I32]),
    "ringar_processor_quota": (ctypes.c_double, []),
    "ringar_inline_bytes": (_I64, []),
    "ringar_take_memory": (_P, [_I64, _P_P]),
    "ringar_free_memory": (None, [_P]),
    "ringar_open_window": (None, [_TEXT, _I64, _I64, _P_P]),
    "ringar_window_local": (_P, [_P]),
    "ringar_window_length": (_I64, [_P, _I32]),
    "ringar_access_window": (None, [_P, _I32, _I32, _I64, _I64, _P, _P]),
    "ringar_access_rows": (None, [_P, _I32, _I32, _P, _I64, _I64, _P, _P]),
    "ringar_close_window": (None, [_P]),
    "ringar_release_window": (None, [_P]),
    "ringar_past_caches_bytes": (_I64, []),
    "ringar_bucket_bytes": (_I64, []),
    "ringar_steps": (_I64, []),
    "ringar_stats": (_P, []),
    "ringar_prepare": (_P, [_TEXT, _ARRAYS, _I32]),
    "ringar_run_again": (None, [_P, _I64, ALLOCATE, _P, _P, _P]),
}
"""Results and arguments of the functions of ringar.h; by default ctypes has `int`s."""


@functools.cache
def library() -> Any:
    """Return the library's C interface (tf_ops/include/ringar.h), or what answers in its place."""
    if (why := absence()) is not None:
        return Library(why)
    if not PATH.exists():
        raise ImportError(
            f"expected the native library at {PATH}, found none. "
            "In a checkout run `make`, or `pip install --editable .`; if ringar is installed, too, "
            "start the program from another folder."
        )
    lib = ctypes.CDLL(str(PATH))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        if result:
            function.restype = result
        if arguments:
            function.argtypes = arguments
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


def _describe(
    inputs: Sequence[int], shapes: Sequence[Sequence[int]], outputs: Sequence[int] | None
) -> ctypes.Array[Description]:
    described, dims = _shapes_of(tuple(map(tuple, shapes)))
    table = described.copy()
    table["input"] = inputs
    if outputs is not None:
        table["output"] = outputs
    arrays = (Description * len(table)).from_buffer(table)
    arrays.dims = dims  # type: ignore[attr-defined]  # to live as long
    return arrays


@functools.lru_cache(256)
def _shapes_of(shapes: tuple[tuple[int, ...], ...]) -> tuple[np.ndarray, ctypes.Array[Any]]:
    """Return descriptions of arrays with these shapes, without addresses, and their dimensions."""
    dims = int64s([size for shape in shapes for size in shape])
    counts = [len(shape) for shape in shapes]
    table = np.zeros(len(shapes), Description)
    table["ndims"] = counts
    table["dims"] = ctypes.addressof(dims) + 8 * (np.cumsum(counts, dtype=np.uint64) - counts)
    return table, dims


def _describe_numpy(
    inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None
) -> ctypes.Array[Description]:
    return _describe(
        [array.ctypes.data for array in inputs],
        [array.shape for array in inputs],
        None if outputs is None else [array.ctypes.data for array in outputs],
    )


class _PoolHandle:
    """Own memory of the pool of outputs."""

    def __init__(self, handle: int) -> None:
        self._handle, self._free = handle, library().ringar_free_memory

    def __del__(self) -> None:
        self._free(self._handle)


def empty(shape: Sequence[int], dtype: npt.DTypeLike) -> np.ndarray:
    """Return an array without values, if possible in memory that the other ranks can write to."""
    element, address = np.dtype(dtype), ctypes.c_void_p()
    size = math.prod(shape) * element.itemsize
    if size < LEAST_POOLED:
        return np.empty(shape, element)
    handle = library().ringar_take_memory(size, ctypes.byref(address))
    if not handle or address.value is None:
        return np.empty(shape, element)
    memory = Memory(address.value, size, _PoolHandle(handle))
    return np.asarray(memory).view(element).reshape(shape)


class PreparedCall:
    """Own a call that the library keeps.

    Args:
        spec: the line of text that tf_ops/engine/spec.h describes.
        inputs: the addresses of its arrays.
        shapes: their shapes.
        outputs: the addresses of the results.

    Attributes:
        reference: the call, as an argument of the library's functions.
    """

    def __init__(
        self,
        spec: str,
        inputs: Sequence[int],
        shapes: Sequence[Sequence[int]],
        outputs: Sequence[int] | None = None,
    ) -> None:
        arrays = _describe(inputs, shapes, outputs)
        self._call = library().ringar_prepare(spec.encode(), arrays, len(inputs))
        if not self._call:
            raise errors.MismatchError(library().ringar_last_error().decode())
        # ctypes passes a reference as it is, but converts an address in each call.
        self.reference = ctypes.byref(ctypes.c_char.from_address(self._call))

    def __del__(self) -> None:
        if getattr(self, "_call", None):
            library().ringar_release(ctypes.c_void_p(self._call))


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
        addresses = ([array.ctypes.data for array in arrays] for arrays in (inputs, outputs))
        shapes = [array.shape for array in inputs]
        self._call = PreparedCall(spec, next(addresses), shapes, next(addresses))
        self._run = functools.partial(library().ringar_run_prepared, self._call.reference)

    def run(self) -> None:
        """Run the collective and wait for its end; raise as `ringar.allreduce`."""
        code = self._run()
        if code:
            check(code)


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
    gathered: dict[int, np.ndarray] = {}

    def allocate(index: int, rows: int) -> int:
        try:
            gathered[index] = np.empty((rows, *inputs[index].shape[1:]), inputs[index].dtype)
        except MemoryError:
            return 0
        return address_of(gathered[index].ctypes.data)

    arrays = _describe_numpy(inputs, outputs)
    if outputs is not None:
        assert splits is None, "splits are for outputs whose rows the exchange tells"
        check(
            library().ringar_run(
                spec.encode(), arrays, len(arrays), None, 0, None, NO_CALLBACK, None
            )
        )
        return list(outputs), _NO_ROWS
    received = _run(library().ringar_run, spec, arrays, allocate, splits, received_count)
    return [gathered[i] for i in range(len(inputs))], received


def run_on_gpu(
    spec: str,
    inputs: Sequence[int],
    shapes: Sequence[Sequence[int]],
    outputs: Sequence[int] | None,
    allocate: Callable[[int, int], int] | None,
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
        allocate: where there are no outputs, `(index, rows) -> address` of GPU memory for one with
            so many rows. Any thread may call it; `run_on_gpu` raises its exceptions.
        device: the number of the GPU.
        stream: the address of a CUDA stream, 0 for the default one.
        splits: rows per rank.
        received_count: the number of row counts to return.

    Returns:
        The row counts received.
    """
    arrays = _describe(
        [address_of(array) for array in inputs],
        shapes,
        None if outputs is None else [address_of(array) for array in outputs],
    )
    return _run(
        library().ringar_run_on_gpu,
        spec,
        arrays,
        allocate and (lambda index, rows: address_of(allocate(index, rows))),
        splits,
        received_count,
        device,
        stream,
    )


def address_of(of_array: int) -> int:
    """Return an address for the library, to which null stands for no array: empty ones have it."""
    return of_array or _NO_MEMORY


def _run(
    function: Callable[..., int],
    spec: str,
    arrays: ctypes.Array[Description],
    allocate: Callable[[int, int], int] | None,
    splits: Sequence[int] | None,
    received_count: int,
    *place: int,
) -> np.ndarray:
    # No exception may pass through native code: return a failure and raise the exception later.
    failures: list[BaseException] = []

    def guarded(_context: int, index: int, rows: int) -> int:
        assert allocate is not None
        try:
            return allocate(index, rows)
        except BaseException as error:
            failures.append(error)
            return 0

    # A callback takes ten microseconds to make.
    callback = ALLOCATE(guarded) if allocate else NO_CALLBACK
    received = np.zeros(received_count, np.int64) if received_count else _NO_ROWS
    code = function(
        spec.encode(),
        arrays,
        len(arrays),
        int64s(splits) if splits is not None else None,
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
