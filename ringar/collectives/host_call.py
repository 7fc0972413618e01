"""Calls of Python functions from a step, in the order of the program, also where XLA compiles it.

A graph calls the function by `tf.numpy_function`. Compiled code calls it by an XLA custom call
(tf_ops/kernels/host_call.cc), which has its place among the collectives
(`ringar.collectives.compiled`) and knows the function by a number. It needs static shapes, and
memory that Python can read: that of the CPU.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from ringar.collectives import compiled
from ringar.collectives.call import Call
from ringar.errors import UnsupportedError
from ringar.job import native

Function = Callable[..., Any]

_MESSAGE_BYTES = 4096  # RINGAR_MESSAGE_BYTES of ringar.h
_POINTERS = ctypes.POINTER(ctypes.c_void_p)
_HOST_FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int64, _POINTERS, _POINTERS, ctypes.POINTER(ctypes.c_char)
)

_numbers = itertools.count()
_raised: list[BaseException] = []  # the last error of a function
_calls: weakref.WeakValueDictionary[int, _HostCall] = weakref.WeakValueDictionary()


def host_call(
    function: Function, inputs: Sequence[Any], results: Sequence[tf.TensorSpec], name: str
) -> list[tf.Tensor]:
    """Call a function whenever a step comes to this place.

    Args:
        function: takes an array for each input, and returns a list of arrays. In compiled code the
            arrays of inputs are valid during the call only.
        inputs: tensors.
        results: the shapes and dtypes of the results. Compiled code needs the dimensions.
        name: a name for errors.

    Returns:
        The results.

    Raises:
        UnsupportedError: in code that XLA compiles for a GPU, or with shapes that are not static.
    """
    tensors = [tf.convert_to_tensor(value) for value in inputs]
    if not compiled.is_compiling():
        dtypes = [spec.dtype for spec in results]
        noted = functools.partial(_noting, function)
        outputs = tf.nest.flatten(tf.numpy_function(noted, tensors, dtypes))[: len(results)]
        return [tf.ensure_shape(o, spec.shape) for o, spec in zip(outputs, results, strict=True)]
    call = Call("window", name=name)
    if (why := native.absence()) is not None:
        raise UnsupportedError(why.refusal(f"{name} in a step that XLA compiles"))
    if compiled.target_device() == "GPU":
        raise UnsupportedError(
            call.refusal(
                "a step that runs op by op or as a graph, or that XLA compiles for the CPU",
                "one that XLA compiles for a GPU",
                "Compile the model with jit_compile=False.",
            )
        )
    specs = [tf.TensorSpec(compiled.static_shape(t, call), t.dtype) for t in tensors]
    handler = _HostCall(function, specs, results)
    _calls[handler.number] = handler
    _keep(handler)
    _install()
    return compiled.run(str(handler.number), tensors, results, "ringar_host_call")


def cause_of(error: BaseException) -> BaseException | None:
    """Return the function's error behind TensorFlow's `error`; None if it has another cause."""
    is_cause = isinstance(error, tf.errors.OpError) and _raised and str(_raised[0]) in error.message
    return _raised[0] if is_cause else None


def _noting(function: Function, *arrays: Any) -> Any:
    """Call a function, and keep its error, since TensorFlow keeps only the text."""
    try:
        return function(*arrays)
    except BaseException as error:
        _raised[:] = [error]
        raise


class _HostCall:
    """Call a function on the memory of compiled code.

    Args:
        function: takes an array for each input, and returns those of the results.
        inputs: the shapes and dtypes of the inputs.
        results: those of the results.
    """

    def __init__(
        self, function: Function, inputs: Sequence[tf.TensorSpec], results: Sequence[tf.TensorSpec]
    ) -> None:
        self.number = next(_numbers)
        self._function, self._inputs, self._results = function, list(inputs), list(results)

    def run(self, inputs: Any, outputs: Any) -> None:
        arrays = [_array(inputs[i], spec) for i, spec in enumerate(self._inputs)]
        values = _noting(self._function, *arrays)
        for i, (value, spec) in enumerate(zip(values, self._results, strict=True)):
            _array(outputs[i], spec)[...] = value


def _array(address: int | None, spec: tf.TensorSpec) -> np.ndarray:
    """Return an array on memory of compiled code."""
    dtype, shape = np.dtype(spec.dtype.as_numpy_dtype), tuple(spec.shape)
    size = math.prod(shape) * dtype.itemsize
    if size == 0 or address is None:
        return np.zeros(shape, dtype)
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)


@_HOST_FUNCTION
def _run(number: int, inputs: Any, outputs: Any, message: Any) -> int:
    try:
        _calls[number].run(inputs, outputs)
    except BaseException as error:  # it must not pass through the compiled code
        text = f"{type(error).__name__}: {error}".encode()[: _MESSAGE_BYTES - 1] + b"\0"
        ctypes.memmove(message, text, len(text))
        return 1
    return 0


@functools.cache
def _install() -> None:
    native.library().ringar_on_host_call(_run)


def _keep(call: _HostCall) -> None:
    """Keep a call as long as the graphs that contain it."""
    graph = tf_ops.get_default_graph()
    while graph is not None and graph.building_function:
        graph._ringar_host_calls = [*getattr(graph, "_ringar_host_calls", []), call]
        graph = getattr(graph, "outer_graph", None)
