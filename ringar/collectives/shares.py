"""Averages of gradients in which each rank counts with its share of the examples.

A control vector travels before the gradients. It has the rows of this rank's batch, and tells
whether the rank takes part without data, and whether it asks all ranks to stop. The engine does the
arithmetic (tf_ops/engine/shares.h), and only if shares differ. Code that is compiled for a GPU does
it in the graph, where XLA fuses it, and sends no request to stop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringar.collectives import branches, compiled
from ringar.collectives import call as calls
from ringar.collectives import collective as collectives
from ringar.collectives import compression as compressors
from ringar.collectives.call import Call
from ringar.collectives.ops import ReduceOp
from ringar.collectives.reductions import with_op
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
        """Return the control vector for tensors of `dtype`."""
        rest = [float(self.idle), float(self.begins_step)]
        if isinstance(self.rows, tf.Tensor):
            return tf.stack([tf.cast(self.rows, dtype), *(tf.constant(x, dtype) for x in rest)])
        return tf.constant([self.rows, *rest], dtype)


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
            outputs = list(collectives.run_tensors(call, values))
        else:
            with branches.behind():
                reply, *outputs = _run(call, control, values, ranks.size())
            answer = reply if answer is None else answer
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
    if compiled.is_compiling() and compiled.target_device() == "GPU":
        return _run_in_graph(call, control, values, size)
    call = dataclasses.replace(call, shares=control.key)
    return collectives.run_tensors(call, [control.vector(dtype), *values])[: 1 + len(values)]


def _run_in_graph(
    call: Call, control: Control, values: list[tf.Tensor], size: int
) -> list[tf.Tensor]:
    """Compute in TensorFlow the average that the engine computes in the memory of a host."""
    if call.mean:
        raise UnsupportedError(
            call.refusal(
                "a training step that is not compiled for a GPU, in a job whose ranks may change",
                "one that is",
                "Compile the model with jit_compile=False.",
            )
        )
    dtype = values[0].dtype if values else tf.float32
    shared = control.key != NO_SHARES
    has_rows = isinstance(control.rows, tf.Tensor) or control.rows >= 0
    rows = tf.cast(control.rows if shared and has_rows else 1.0, dtype)
    if control.idle:
        rows, values = tf.zeros([], dtype), [tf.zeros_like(value) for value in values]
    elif shared and has_rows:
        values = [value * rows for value in values]
    vector = tf.stack([rows, tf.constant(float(control.idle), dtype), tf.zeros([], dtype)])
    reduced, *results = collectives.run_tensors(call, [vector, *values])
    total, idle, _ = tf.unstack(reduced / tf.constant(call.prescale * call.postscale, dtype))
    factor = tf.math.divide_no_nan(tf.constant(float(size), dtype), total)
    if not shared:
        factor = tf.ones([], dtype)
    weight = rows * factor
    return [tf.stack([weight, tf.round(idle), tf.zeros([], dtype)]), *(r * factor for r in results)]


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
