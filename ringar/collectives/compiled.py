"""Collectives inside compiled functions: an XLA custom call into the library.

XLA keeps no order between calls that share no data, but ranks must issue collectives in the same
order. A variable keeps the order: each call reads it and writes to it. TensorFlow passes the
variable's value from call to call in program order, through branches, loops and called functions,
which a tensor could not leave. This costs a dozen microseconds per call of a compiled function.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.ops import control_flow_util

from ringar import errors
from ringar.collectives.call import Call
from ringar.job import native

# Every TensorFlow release has float32 variables on every device.
_TOKEN = tf.TensorSpec([], tf.float32)


def is_compiling() -> bool:
    """Return whether the code that runs now is being traced for XLA."""
    if tf.executing_eagerly():
        return False
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf_ops.get_default_graph()))


def static_shape(tensor: tf.Tensor, call: Call) -> list[int]:
    """Return the static shape of a tensor; raise if compiled code cannot know it."""
    if not tensor.shape.is_fully_defined():
        raise errors.UnsupportedError(
            call.refusal(
                "tensors of a static shape in a compiled function",
                f"shape {tensor.shape}",
                "Give the function an input_signature, or leave the collective out of jit_compile.",
            )
        )
    return [int(dim) for dim in tensor.shape]


def run(
    spec: str,
    tensors: Sequence[tf.Tensor],
    results: Sequence[tf.TensorSpec],
    target: str = "ringar_collective",
) -> list[tf.Tensor]:
    """Add a custom call to the graph under construction, behind those before it."""
    device = target_device()
    check_failures_are_reported(device)
    order = _order(device)
    token, *outputs = xla.custom_call_v2(
        target,
        [order.read_value(), *tensors],
        [_TOKEN, *results],
        backend_config=spec,
        has_side_effect=True,
    )
    order.assign(token)
    return outputs


def target_device() -> str:
    """Return the device of the function under construction: "CPU" or "GPU"."""
    device = tf.no_op().device.upper()
    if "CPU" in device or not tf.config.list_logical_devices("GPU"):
        return "CPU"
    return "GPU"


@functools.cache
def _order(device: str) -> tf.Variable:
    # A variable starts TensorFlow's thread pools, so make it with the first compiled collective.
    # Each device needs one: compiled code cannot use a variable of another device.
    with tf.init_scope(), tf.device(f"/{device}:0"):
        return tf.Variable(0, trainable=False, dtype=_TOKEN.dtype, name="ringar_order")


@functools.cache
def check_failures_are_reported(device: str = "CPU") -> None:
    """Check, by one failure on purpose, that TensorFlow reports errors of custom calls.

    The report relies on a layout that XLA does not guarantee. If the layout has changed, compiled
    collectives are refused: an unreported error would be a wrong result.

    Raises:
        UnsupportedError: TensorFlow did not report the failure.
    """
    message = "ringar checks that a failure in compiled code is seen"
    if native.library().ringar_has_xla_target():

        def fail() -> list[tf.Tensor]:
            return xla.custom_call_v2(
                "ringar_failure",
                [tf.zeros([], _TOKEN.dtype)],
                [_TOKEN, _TOKEN],
                backend_config=message,
                has_side_effect=True,
            )

        try:
            with tf.init_scope(), tf.device(f"/{device}:0"):
                tf.function(fail, jit_compile=True)()
        except tf.errors.OpError as error:
            if message in str(error):
                return
    raise errors.UnsupportedError(
        f"TensorFlow {tf.__version__} does not let ringar report failures from compiled code on "
        f"the {device}. Compile the model with jit_compile=False."
    )
