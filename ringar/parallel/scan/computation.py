"""Local computations of the native library: eager, in a `tf.function` and compiled.

A computation needs neither other ranks nor the engine. It is a TensorFlow op whose result is ready
when its kernel returns, or an XLA custom call. tf_ops/kernels/computation.h describes both.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringar import errors
from ringar.collectives import compiled
from ringar.job import native, threads

DTYPES = (tf.float32, tf.float64)
MOST_THREADS = 1024


def or_empty(tensor: tf.Tensor | None, dtype: tf.DType) -> tf.Tensor:
    """Return an optional input, or the empty tensor that stands for None."""
    return tf.zeros([0], dtype) if tensor is None else tensor


def compute(
    name: str,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.TensorSpec],
    **options: int | bool,
) -> list[tf.Tensor]:
    """Run a computation.

    A compiled function cannot call a `tf.function` that was traced outside of XLA: the trace has
    the op, which XLA does not know.

    Args:
        name: the name of its op and target, in lower case.
        inputs: the input tensors, those of the computation's dtype first.
        outputs: the dtypes and shapes of the outputs. Shapes may be unknown, except in compiled
            functions.
        **options: the options, as numbers.
    """
    words = {"dtype": outputs[0].dtype.name, **{key: int(options[key]) for key in options}}
    text = " ".join(f"{key}={value}" for key, value in words.items())
    if compiled.is_compiling():
        return _compiled(name, inputs, outputs, text)
    with tf.device("/CPU:0"):
        results = getattr(native.ops(), f"ringar_{name}")(
            inputs=list(inputs), Tout=[output.dtype for output in outputs], options=text
        )
    for result, output in zip(results, outputs, strict=True):
        if not tf.executing_eagerly():
            result.set_shape(output.shape)
    return list(results)


def _compiled(
    name: str, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.TensorSpec], options: str
) -> list[tf.Tensor]:
    if compiled.target_device() != "CPU":
        raise errors.UnsupportedError(
            f"{name}: expected a function that is compiled for the CPU, received one for a GPU. "
            'Compile it under tf.device("/CPU:0"), or leave it out of jit_compile; for CuPy '
            "arrays use ringar.cupy.scan."
        )
    for tensor in (*inputs, *outputs):
        if not tensor.shape.is_fully_defined():
            raise errors.UnsupportedError(
                f"{name}: expected tensors of a static shape in a compiled function, received "
                f"shape {tensor.shape}. Give the function an input_signature, or leave it out of "
                "jit_compile."
            )
    shapes = ",".join("x".join(str(dim) for dim in tensor.shape) for tensor in inputs)
    return compiled.custom_call(
        f"ringar_{name}", inputs, outputs, f"{options} inputs={shapes}", has_side_effect=False
    )


def usable_threads(count: Any) -> int:
    """Return the number of threads for a computation; by default that of TensorFlow's pool.

    Raises:
        ValueError: `count` is not a number of threads.
    """
    if count is None:
        return threads.intra_op_threads() or threads.cores()
    if isinstance(count, bool) or not isinstance(count, numbers.Integral) or count < 1:
        raise ValueError(f"`threads` must be None or an integer, 1 or more. Received: {count!r}")
    return min(int(count), MOST_THREADS)
