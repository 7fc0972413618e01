"""The one file that knows ctypes and the path of libringar.so."""

from __future__ import annotations

import ctypes
import functools
import pathlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ringar import errors

PATH = pathlib.Path(__file__).with_name("libringar.so")


class Config(ctypes.Structure):
    """``ringar_config`` of ringar.h."""

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
    ]  # fmt: skip

    def set_link(
        self, hosts: Sequence[int], library: pathlib.Path, communicator: int, table: Sequence[int]
    ) -> None:
        """Fills in what a job that MPI has started has more than one on a single host."""
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
    """The TensorFlow ops of the library, as functions.

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
    """The function of a TensorFlow op: one that waits for the end, or one that is asynchronous."""
    return getattr(ops(), f"ringar_{collective}" if wait else f"ringar_{collective}_async")


@functools.cache
def library() -> ctypes.CDLL:
    """The library's C interface (tf_ops/include/ringar.h)."""
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
    """Raises what the library reports for this thread, if ``code`` is not 0."""
    if code:
        message = library().ringar_last_error().decode(errors="replace")
        raise errors.from_code(code, message)


def _int64s(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def _describe(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None) -> Any:
    arrays = (_Array * len(inputs))()
    for i, array in enumerate(inputs):
        output = outputs[i].ctypes.data if outputs is not None else None
        arrays[i] = _Array(array.ctypes.data, output, array.ndim, _int64s(array.shape))
    return arrays


class Prepared:
    """A collective that is run again and again on the same NumPy arrays.

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
        arrays = _describe(self.inputs, self.outputs)
        self._call = ctypes.c_void_p(library().ringar_prepare(spec.encode(), arrays, len(inputs)))
        if not self._call:
            raise errors.MismatchError(library().ringar_last_error().decode())

    def run(self) -> None:
        """Runs the collective and waits for its end. Raises as :func:`ringar.allreduce`."""
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
    """Runs one collective on NumPy arrays, waiting for its end.

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

    @_ALLOCATE
    def allocate(_context: int, index: int, rows: int) -> int:
        try:
            made[index] = np.empty((rows, *inputs[index].shape[1:]), inputs[index].dtype)
        except MemoryError:
            return 0
        # An empty array may have no memory of its own, and 0 means failure.
        return made[index].ctypes.data or inputs[index].ctypes.data or 1

    arrays = _describe(inputs, outputs)
    received = np.zeros(received_count, np.int64)
    code = library().ringar_run(
        spec.encode(),
        arrays,
        len(inputs),
        _int64s(splits) if splits is not None else None,
        len(splits) if splits is not None else 0,
        received.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)) if received_count else None,
        allocate,
        None,
    )
    check(code)
    results = list(outputs) if outputs is not None else [made[i] for i in range(len(inputs))]
    return results, received
