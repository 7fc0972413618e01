"""Averages of gradients in which each rank counts with its share of the examples.

A control vector travels in front of the gradients. It has the rows of this rank's batch, and tells
whether the rank takes part without data, and whether it asks all ranks to stop. Its numbers are
float32 beside gradients of two bytes, which could not hold them. The engine does the arithmetic
(tf_ops/engine/shares.h), and only if shares differ. Code that is compiled for a GPU does it in the
graph, where XLA fuses it, and carries no wish to stop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringar.collectives import branches, compiled
from ringar.collectives import call as calls
from ringar.collectives import compression as compressors
from ringar.collectives.call import Call
from ringar.collectives.ops import ReduceOp
from ringar.collectives.reductions import with_op
from ringar.collectives.tensors import run_tensors
from ringar.errors import UnsupportedError
from ringar.job import native
from ringar.job.process_sets import ProcessSet

#: The rows of a rank that counts as much as any other.
WHOLE = -1.0

#: The key of a sum, in which ranks have no shares.
NO_SHARES = 0


@dataclasses.dataclass(frozen=True)
class Control:
    """Hold the values of a rank's control vector.

    Attributes:
        rows: the rows of the rank's batch, a number or a scalar tensor; or `WHOLE`.
        idle: whether the rank takes part without data.
        begins_step: whether a training step begins with this collective.
        key: the collectives for which the same number of rows is a full batch; or `NO_SHARES`.
    """

    rows: Any = WHOLE
    idle: bool = False
    begins_step: bool = False
    key: int = NO_SHARES

    def vector(self, dtype: tf.DType) -> tf.Tensor:
        """Return the control vector for tensors of `dtype`; `numbers_of` reads the answer."""
        kind = _dtype_of_numbers(dtype)
        rest = [float(self.idle), float(self.begins_step)]
        if isinstance(self.rows, tf.Tensor):
            numbers = tf.stack([tf.cast(self.rows, kind), *(tf.constant(x, kind) for x in rest)])
        else:
            numbers = tf.constant([self.rows, *rest], kind)
        return numbers if kind == dtype else tf.reshape(tf.bitcast(numbers, dtype), [-1])


def _dtype_of_numbers(dtype: tf.DType) -> tf.DType:
    """Return the dtype of weights and numbers of rows beside tensors of `dtype`."""
    return tf.float32 if dtype.size < tf.float32.size else dtype


def numbers_of(vector: tf.Tensor) -> tf.Tensor:
    """Return the three numbers of the answer to a control vector."""
    kind = _dtype_of_numbers(vector.dtype)
    return vector if kind == vector.dtype else tf.bitcast(tf.reshape(vector, [-1, 2]), kind)


def weighted(tensor: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Return a floating tensor times a weight, whose digits a tensor of two bytes does not have."""
    kind = _dtype_of_numbers(tensor.dtype)
    return tf.cast(tf.cast(tensor, kind) * tf.cast(weight, kind), tensor.dtype)


def allreduce(
    tensors: Sequence[tf.Tensor],
    control: Control,
    op: ReduceOp,
    *,
    compression: Any,
    algorithm: str | None,
    prescale_factor: float,
    postscale_factor: float,
    name: str,
    process_set: ProcessSet | None,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Reduce floating tensors as `ringar.grouped_allreduce` does, each rank with its share.

    Returns:
        The results, and the answer to the control vector: the weight of this rank in the average,
        the number of idle ranks, and the number of ranks that ask all ranks to stop.
    """
    call, ranks = calls.begin(
        "allreduce", process_set, name, prescale=prescale_factor, postscale=postscale_factor
    )
    call = with_op(
        call, op, ranks.size(), wire=compressors.checked(compression),
        algorithm=calls.checked_algorithm(algorithm),
    )  # fmt: skip
    pairs = [compression.compress(tensor) for tensor in tensors]
    results: list[Any] = [None] * len(pairs)
    answer = None
    for places in calls.by_dtype(value.dtype for value, _ in pairs) or [[]]:
        values = [pairs[place][0] for place in places]
        if values and not values[0].dtype.is_floating:  # by a compressor of the user's
            outputs = list(run_tensors(call, values))
        else:
            with branches.behind():
                numbers, *outputs = _run(call, control, values, ranks.size())
            answer = numbers if answer is None else answer
        for place, output in zip(places, outputs, strict=False):
            results[place] = compression.decompress(output, pairs[place][1])
    if answer is None:
        answer = allreduce(
            [], control, op, compression=compressors.Compression.none, algorithm=algorithm,
            prescale_factor=1.0, postscale_factor=1.0, name=f"{name}/shares",
            process_set=process_set,
        )[1]  # fmt: skip
    return results, answer


def _run(call: Call, control: Control, values: list[tf.Tensor], size: int) -> Sequence[tf.Tensor]:
    dtype = values[0].dtype if values else tf.float32
    if compiled.is_for_gpu() or (compiled.is_compiling() and native.absence() is not None):
        return _run_in_graph(call, control, values, size)
    call = dataclasses.replace(call, shares=control.key)
    vector, *results = run_tensors(call, [control.vector(dtype), *values])
    return [numbers_of(vector), *results[: len(values)]]


def _run_in_graph(
    call: Call, control: Control, values: list[tf.Tensor], size: int
) -> list[tf.Tensor]:
    """Do in TensorFlow what the engine does to arrays in the memory of a host.

    The control vector is reduced first, so that a gradient is multiplied once, by a weight near 1:
    its product with a number of rows might overflow. The engine does not know the weight before the
    exchange, and multiplies before and after it (tf_ops/engine/shares.h): where rows differ, the
    last digits of the two do, too.
    """
    if call.mean:
        raise UnsupportedError(
            call.refusal(
                "a training step that is not compiled for a GPU, in a job whose ranks may change",
                "one that is",
                "Compile the model with jit_compile=False.",
            )
        )
    kind = _dtype_of_numbers(values[0].dtype if values else tf.float32)
    has_rows = control.key != NO_SHARES and (
        isinstance(control.rows, tf.Tensor) or control.rows >= 0
    )
    rows = tf.cast(0.0 if control.idle else control.rows if has_rows else 1.0, kind)
    ask = dataclasses.replace(call, prescale=1.0, postscale=1.0, name=f"{call.name}/rows")
    numbers = tf.stack([rows, tf.constant(float(control.idle), kind)])
    total, idle = tf.unstack(run_tensors(ask, [numbers])[0])
    weight = rows
    if control.key != NO_SHARES:
        # In this order, equal numbers of rows give 1, and the average the bits of a plain one.
        weight = tf.math.divide_no_nan(rows * tf.constant(float(size), kind), total)
        factor = weight
        if values and kind != values[0].dtype:
            # A third in bfloat16 is off by 0.2%: the factors of the average belong to the weight.
            factor = weight * tf.constant(call.prescale * call.postscale, kind)
            call = dataclasses.replace(call, prescale=1.0, postscale=1.0)
        values = [weighted(value, factor) for value in values]
    if control.idle:  # whatever the values hold, NaN included
        values = [tf.zeros_like(value) for value in values]
    results = run_tensors(call, values) if values else []
    return [tf.stack([weight, tf.round(idle), tf.zeros([], kind)]), *results]


def begin_training() -> None:
    """Reset the requests to stop and the size of a full batch, at the same place on all ranks."""
    native.library().ringar_begin_training()


def ask_to_stop(asks: bool) -> None:
    """Ask all ranks to stop, from the next reduction of gradients on."""
    native.library().ringar_ask_to_stop(int(asks))


def stop_was_seen() -> bool:
    """Return whether a rank has asked all ranks to stop, as far as this rank has seen."""
    return bool(native.library().ringar_stop_was_seen())


def steps() -> int:
    """Return the number of training steps that this rank has taken part in, idle or not."""
    return int(native.library().ringar_steps())
