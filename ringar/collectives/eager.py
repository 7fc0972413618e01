"""Calls of small eager tensors that repeat, which take the way of NumPy arrays.

To run its simplest op takes TensorFlow longer than such a call takes in all. An eager tensor on the
host lends its memory to a NumPy array, and a tensor can be made of the array of a result. The op
runs as before where TensorFlow has to see it, or chooses its time or place: if a `tf.GradientTape`
or a callback records the tensor's ops, in a scope of `tf.device`, and with an executor in the
background, whose ops the call would overtake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

from ringar import errors
from ringar.collectives.call import REMEMBERED
from ringar.job import native
from ringar.job.native_repeat import ADDRESS

if TYPE_CHECKING:
    from ringar.job.native_repeat import Repeat

_HOST = "/job:localhost/replica:0/task:0/device:CPU:0"

Run = Callable[[tf.Tensor], tf.Tensor]


def with_short_way(run_op: Run, prepare: Callable[[np.ndarray], Repeat], limit: int) -> Run:
    """Return a function that runs a collective on an eager tensor; several threads may call it.

    Args:
        run_op: runs the collective by its op.
        prepare: returns the prepared call for arrays of a shape.
        limit: the bytes of a tensor from which on the op is better: it has memory that the other
            ranks can write to, and results without a copy.
    """
    prepared: dict[tuple[int, ...], Repeat] = {}
    recorders = pywrap_tfe.TFE_Py_TapeSetPossibleGradientTypes
    has_places = len(tf.config.list_logical_devices()) > 1

    def prepare_shape(array: np.ndarray) -> Repeat:
        if len(prepared) >= REMEMBERED:
            prepared.clear()
        return prepared.setdefault(array.shape, prepare(array))

    def run(tensor: tf.Tensor) -> tf.Tensor:
        state = context._context._thread_local_data
        if (
            recorders((tensor,))  # of derivatives, backward and forward
            or state.op_callbacks
            or tensor.device != _HOST
            or (has_places and state.device_name)
            or _has_background()
        ):
            return run_op(tensor)
        array = np.asarray(tensor._numpy())  # on the tensor's memory; a scalar's is a copy
        if array.nbytes >= limit:
            return run_op(tensor)
        repeat = prepared.get(array.shape) or prepare_shape(array)
        # As `repeat(array)`, but for the errors; a call of Python more would take a tenth longer.
        outputs = [repeat.empty()]
        code = repeat.run(id(array) + ADDRESS, id(outputs[0]) + ADDRESS, id(outputs))
        if code:
            _raise(code)
        return type(tensor)(outputs[0], None)

    return run


def _has_background() -> bool:
    """Return whether the ops of this thread run in the background.

    As `context.is_async`, which takes three times as long, and waits for these ops.
    """
    executor = pywrap_tfe.TFE_ContextGetExecutorForThread(context._context._context_handle)
    is_async: bool = pywrap_tfe.TFE_ExecutorIsAsync(executor)
    pywrap_tfe.TFE_DeleteExecutor(executor)
    return is_async


def _raise(code: int) -> None:
    """Raise the failure of a call as TensorFlow raises that of an op."""
    try:
        native.check(code)
    except errors.RingarError as error:
        kind = tf.compat.v1.errors.exception_type_from_error_code(code)
        raise kind(None, None, str(error)) from None
