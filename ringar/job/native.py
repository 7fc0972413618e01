"""The one file that knows ctypes and the path of libringar.so."""

from __future__ import annotations

import ctypes
import functools
import pathlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ringar import errors

PATH = pathlib.Path(__file__).parents[1] / "libringar.so"


class Config(ctypes.Structure):
    """`ringar_config` of ringar.h."""

    _fields_ = [
        *[
            (name, ctypes.c_int32)
            for name in (
                "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "arena_fd",
            )
        ],
        *[(name, ctypes.c_double) for name in ("start_timeout", "deadline", "stall_warning")],
        ("hosts", ctypes.POINTER(ctypes.c_int32)),
        ("link_library", ctypes.c_char_p),
        ("link_communicator", ctypes.c_void_p),
        ("algorithm", ctypes.c_char_p),
        ("recursive_doubling_bytes", ctypes.POINTER(ctypes.c_int64)),
        ("recursive_doubling_count", ctypes.c_int32),
        ("generation", ctypes.c_int32),
        ("cuda_library", ctypes.c_char_p),
        ("nccl_library", ctypes.c_char_p),
    ]  # fmt: skip

    def set_link(
        self, hosts: Sequence[int], library: pathlib.Path, communicator: int, table: Sequence[int]
    ) -> None:
        """Fill in what a job that MPI has started has more than one on a single host."""
        self.hosts = (ctypes.c_int32 * len(hosts))(*hosts)
        self.link_library = str(library).encode()
        self.link_communicator = communicator
        self.recursive_doubling_bytes = _int64s(table)
        self.recursive_doubling_count = len(table)


class _Array(ctypes.Structure):
    _fields_ = [
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("ndims", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    ]


_NO_MEMORY = 1
"""An address that is not followed."""

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64)


def _tensorflow() -> ModuleType:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            "ringar needs TensorFlow 2.16 or later with Keras 3, found none. "
            "Install one, for example with: pip install 'ringar[tensorflow]'"
        ) from error
    return tf


@functools.cache
def ops() -> ModuleType:
    """Return the TensorFlow ops of the library, as functions.

    Until TensorFlow 2.18 a part of its C API lives in libtensorflow_cc.so.2, which Python opens
    privately: it is opened once more for all to see, before the library looks for the C API.
    """
    if not PATH.exists():
        raise ImportError(
            f"expected the native library at {PATH}, found none. "
            "In a checkout run `make`, or `pip install --editable .`; if ringar is installed, too, "
            "start the program from another folder."
        )
    tf = _tensorflow()
    folder = pathlib.Path(str(tf.__file__)).parent
    for name in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2"):
        if (folder / name).exists():
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    module: ModuleType = tf.load_op_library(str(PATH))
    return module


def op(collective: str, *, wait: bool) -> Any:
    """Return the function of a TensorFlow op, which waits for the end or is asynchronous."""
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
    lib.ringar_start_timeline.argtypes = [ctypes.c_char_p, ctypes.c_int32]
    lib.ringar_inline_bytes.restype = ctypes.c_int64
    lib.ringar_stats.restype = ctypes.c_void_p
    lib.ringar_prepare.restype = ctypes.c_void_p
    lib.ringar_prepare.argtypes = [ctypes.c_char_p, ctypes.POINTER(_Array), ctypes.c_int32]
    if not lib.ringar_has_tensorflow_ops():
        raise ImportError(
            "expected TensorFlow's C API in this process (TensorFlow 2.16 or later), found only "
            f"a part of it in TensorFlow {_tensorflow().__version__}"
        )
    return lib


def check(code: int) -> None:
    """Raise what the library reports for this thread, if `code` is not 0."""
    if code:
        message = library().ringar_last_error().decode(errors="replace")
        raise errors.from_code(code, message)


def _int64s(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def _describe(
    inputs: Sequence[int], shapes: Sequence[Sequence[int]], outputs: Sequence[int] | None
) -> Any:
    arrays = (_Array * len(inputs))()
    for i, shape in enumerate(shapes):
        output = outputs[i] if outputs is not None else None
        arrays[i] = _Array(inputs[i], output, len(shape), _int64s(shape))
    return arrays


def _describe_numpy(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None) -> Any:
    return _describe(
        [array.ctypes.data for array in inputs],
        [array.shape for array in inputs],
        None if outputs is None else [array.ctypes.data for array in outputs],
    )


class Prepared:
    """Prepare a collective that runs again and again on the same NumPy arrays.

    Args:
        spec: the line of text that tf_ops/engine/spec.h describes.
        inputs: C-contiguous arrays of one dtype, read at every run.
        outputs: arrays for the results, written at every run.
    """

    def __init__(
        self, spec: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        self.inputs, self.outputs = list(inputs), list(outputs)
        self._run = library().ringar_run_prepared
        arrays = _describe_numpy(self.inputs, self.outputs)
        self._call = ctypes.c_void_p(library().ringar_prepare(spec.encode(), arrays, len(inputs)))
        if not self._call:
            raise errors.MismatchError(library().ringar_last_error().decode())

    def run(self) -> None:
        """Run the collective and wait for its end. Raises as `ringar.allreduce`."""
        code = self._run(self._call)
        if code:
            check(code)

    def __del__(self) -> None:
        if getattr(self, "_call", None):
            library().ringar_release(self._call)


def run(
    spec: str,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray] | None,
    *,
    splits: Sequence[int] | None = None,
    received_count: int = 0,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Run one collective on NumPy arrays, waiting for its end.

    Args:
        spec: the line of text that tf_ops/engine/spec.h describes.
        inputs: C-contiguous arrays of one dtype.
        outputs: arrays for the results, or None where only the exchange tells their rows.
        splits: rows per rank.
        received_count: how many row counts to return.

    Returns:
        The outputs, and the row counts that came.
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
        shapes: theirs.
        outputs: addresses for the results, or None where only the exchange tells their rows.
        allocate: `(index, rows) -> address`, memory of that GPU for an output that has so many
            rows. It is called on any thread; what it raises is raised here.
        device: the GPU's number.
        stream: the address of a CUDA stream, 0 for the default one.
        splits: rows per rank.
        received_count: how many row counts to return.

    Returns:
        The row counts that came.
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
    # An empty array may have no memory of its own, and null stands for no array at all.
    return of_array or _NO_MEMORY


def _run(
    function: Any,
    spec: str,
    arrays: Any,
    allocate: Callable[[int, int], int],
    splits: Sequence[int] | None,
    received_count: int,
    *place: Any,
) -> np.ndarray:
    # No exception passes through native code: it is told of a failure, and we keep the exception.
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
        raise failures.pop()  # not to keep alive the frames that it names
    check(code)
    return received


def synchronize_gpu() -> None:
    """Wait until all that this rank has enqueued on GPUs has come to its end."""
    check(library().ringar_synchronize_gpu())
