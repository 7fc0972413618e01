"""Collectives inside compiled functions: an XLA custom call into the library.

XLA keeps no order between calls that share no data, but ranks must issue collectives in the same
order. A variable keeps the order: each call reads it and writes to it. TensorFlow passes the
variable's value from call to call in program order, through branches, loops and called functions,
which a tensor could not leave. This costs a dozen microseconds per call of a compiled function.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.ops import control_flow_util

from ringar import errors
from ringar.collectives import stablehlo
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
    order = _order(device)
    token, *outputs = custom_call(
        target, [order.read_value(), *tensors], [_TOKEN, *results], spec, device=device
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


def custom_call(
    target: str,
    operands: Sequence[tf.Tensor],
    results: Sequence[tf.TensorSpec],
    text: str,
    *,
    device: str = "CPU",
    has_side_effect: bool = True,
) -> list[tf.Tensor]:
    """Add a custom call to the graph under construction, in the form that this TensorFlow has.

    Args:
        target: the name of a target of the library.
        operands: tensors of static shapes.
        results: the dtypes and shapes of the results.
        text: the text that the target gets.
        device: "CPU" or "GPU".
        has_side_effect: whether XLA must keep the call, even if nothing uses its results.

    Raises:
        UnsupportedError: TensorFlow accepts no form of the call.
    """
    return _FORMS[form(device)](target, operands, results, text, device, has_side_effect)


def _typed_call(
    target: str,
    operands: Sequence[tf.Tensor],
    results: Sequence[tf.TensorSpec],
    text: str,
    device: str,
    has_side_effect: bool,
) -> list[tf.Tensor]:
    """Call through XLA's typed foreign function interface."""
    outputs = xla.call_module(
        list(operands),
        version=xla.call_module_maximum_supported_version(),
        module=stablehlo.custom_call(target, operands, results, text, has_side_effect),
        Tout=[result.dtype for result in results],
        Sout=[result.shape for result in results],
        platforms=["CUDA" if device == "GPU" else "CPU"],
    )
    return list(outputs)


def _older_call(
    target: str,
    operands: Sequence[tf.Tensor],
    results: Sequence[tf.TensorSpec],
    text: str,
    device: str,
    has_side_effect: bool,
) -> list[tf.Tensor]:
    """Call by API_VERSION_STATUS_RETURNING_UNIFIED, for TensorFlow without the typed interface."""
    return list(
        xla.custom_call_v2(
            target, operands, results, backend_config=text, has_side_effect=has_side_effect
        )
    )


_FORMS = {"typed": _typed_call, "older": _older_call}


@functools.cache
def form(device: str) -> str:
    """Return the form of custom calls whose errors TensorFlow reports: "typed" or "older".

    One failure on purpose shows it, before any collective is compiled: an unreported error would
    be a wrong result.

    Raises:
        UnsupportedError: TensorFlow reports errors of neither form.
    """
    native.ops()  # which registers the targets, too
    message = "ringar checks that a failure in compiled code is seen"
    answers = []
    for name, call in _FORMS.items():
        if not _is_registered(name):
            answers.append(f"{name} form: not found in TensorFlow")
            continue

        def fail(call: Any = call) -> list[tf.Tensor]:
            operands = [tf.zeros([], _TOKEN.dtype)]
            outputs: list[tf.Tensor] = call(
                "ringar_failure", operands, [_TOKEN, _TOKEN], message, device, True
            )
            return outputs

        try:
            with tf.init_scope(), tf.device(f"/{device}:0"):
                tf.function(fail, jit_compile=True, autograph=False)()
            answers.append(f"{name} form: the failure was not reported")
        except (tf.errors.OpError, ValueError, TypeError) as error:
            if message in str(error):
                return name
            answers.append(f"{name} form: {str(error).splitlines()[0]}")
    raise errors.UnsupportedError(
        f"TensorFlow {tf.__version__}, compiled functions on the {device}: expected a custom call "
        f"of XLA whose failure is reported, received none ({'; '.join(answers)}). Compile the "
        "model with jit_compile=False, or install a TensorFlow that ringar was tested with."
    )


def _is_registered(name: str) -> bool:
    library = native.library()
    is_typed = name == "typed"
    return bool(library.ringar_has_typed_xla_target() if is_typed else library.ringar_has_xla_target())
