"""The tensors of one rank where there is no native library, and so no op of it.

Outside of compiled functions the arrays go to `ringar.job.one_rank`, in a graph by
`tf.numpy_function`: results, errors, statistics and timelines are as those of an op. XLA compiles
no function of Python: there the result of one rank is written in TensorFlow, and counts in no
statistics.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import tensorflow as tf

from ringar import errors
from ringar.collectives import compiled
from ringar.collectives.call import Call
from ringar.collectives.collective import NO_SPLITS, Splits, output_shapes
from ringar.job import native

Result = TypeVar("Result")


def run(call: Call, tensors: Sequence[tf.Tensor], splits: Splits = NO_SPLITS) -> list[tf.Tensor]:
    """Return the results of a collective of one rank, and of an alltoall its rows, too."""
    spec = call.spec(tensors[0].dtype.name)
    if compiled.is_compiling():
        shapes = [compiled.static_shape(tensor, call) for tensor in tensors]
        _raising(functools.partial(_check, spec, shapes))
        return [_result(call, tensor) for tensor in tensors]
    function = functools.partial(_run_arrays, call, spec)
    dtypes = [tensor.dtype for tensor in tensors]
    if call.collective == "alltoall":
        dtypes.append(tf.int64)
    if tf.executing_eagerly():
        arrays = [tensor.numpy() for tensor in tensors]
        results = _raising(functools.partial(function, *arrays, np.asarray(splits)))
        return [tf.constant(result, dtype) for result, dtype in zip(results, dtypes, strict=True)]
    outputs: list[tf.Tensor] = tf.nest.flatten(
        tf.numpy_function(function, [*tensors, splits], dtypes)
    )
    for tensor, output in zip(tensors, outputs, strict=False):
        output.set_shape(tensor.shape)
    return outputs


def _check(spec: str, shapes: Sequence[Sequence[int]]) -> None:
    native.check(native.library().check(spec, shapes))


def barrier(call: Call) -> None:
    """Add a barrier to the graph: one rank waits for none."""
    if not compiled.is_compiling():
        tf.numpy_function(functools.partial(_run_barrier, call.spec()), [], [])


def _run_barrier(spec: str) -> list[np.ndarray]:
    native.run(spec, [], [])
    return []


def _raising(step: Callable[[], Result]) -> Result:
    """Run a step; raise its failure as TensorFlow does that of an op."""
    try:
        return step()
    except errors.RingarError as error:
        kind = tf.compat.v1.errors.exception_type_from_error_code(errors.code_of(error))
        raise kind(None, None, str(error)) from None


def _run_arrays(call: Call, spec: str, *values: np.ndarray) -> list[np.ndarray]:
    *arrays, splits = (np.asarray(value, order="C") for value in values)
    if call.collective == "alltoall":
        results, rows = native.run(spec, arrays, None, splits=splits.tolist(), received_count=1)
        return [*results, rows]
    shapes = output_shapes(call, [array.shape for array in arrays])
    outputs = None if shapes is None else [np.empty(shape, arrays[0].dtype) for shape in shapes]
    return native.run(spec, arrays, outputs)[0]


def _result(call: Call, tensor: tf.Tensor) -> tf.Tensor:
    """Return the result in TensorFlow: two bytes are multiplied as float32, and rounded once."""
    if call.collective not in ("allreduce", "reducescatter") or not tensor.dtype.is_floating:
        return tf.identity(tensor)
    kind = tf.float32 if tensor.dtype.size < tf.float32.size else tensor.dtype
    result = tensor
    for factor in (call.prescale, call.postscale):
        if factor != 1.0:
            result = tf.cast(result, kind) * tf.constant(factor, kind)
    return tf.identity(tf.cast(result, tensor.dtype))
