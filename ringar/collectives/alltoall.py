"""All-to-all: every rank sends some of its rows to every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringar import errors, native, runtime
from ringar.collectives import call as calls
from ringar.collectives import compiled
from ringar.collectives.call import Call
from ringar.runtime import ProcessSet


@calls.as_it_is
def alltoall(
    tensor: Any,
    splits: Any = None,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Sends rows of a tensor to all ranks and receives rows from all ranks.

    Args:
        tensor: a TensorFlow tensor or a NumPy array of at least one dimension; any dtype but
            strings. All dimensions but the first are the same on all ranks.
        splits: how many rows, in order, go to each rank; they add up to the first dimension.
            Default: evenly, the first ranks getting one more where it cannot be divided. Compiled
            functions take no splits, and a first dimension that the ranks divide.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Returns:
        The rows received, in the order of the ranks; with ``splits``, a pair of them and of the
        number of rows (int64) that came from each rank.

    Raises:
        As :func:`ringar.allreduce`; splits that do not add up are a mismatch on all ranks.
    """
    call, ranks = calls.begin("alltoall", process_set, name)
    if calls.is_numpy([tensor]):
        received, counts = _exchange_array(call, calls.as_arrays([tensor]), splits, ranks.size())
    else:
        value = tf.convert_to_tensor(tensor)
        rows = None if splits is None else tf.cast(splits, tf.int64)
        received, counts = alltoall_tensor(call, value, rows)
    return received if splits is None else (received, counts)


def _exchange_array(
    call: Call, arrays: list[np.ndarray], splits: Any, ranks: int
) -> tuple[np.ndarray, np.ndarray]:
    rows = None if splits is None else [int(s) for s in np.asarray(splits).ravel()]
    results, counts = calls.run_numpy(call, arrays, outputs=None, splits=rows, received_count=ranks)
    return results[0], counts


def alltoall_tensor(
    call: Call, tensor: tf.Tensor, splits: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """The op itself: rows received, and how many from each rank."""
    ranks = runtime.size_of(call.process_set)
    if compiled.is_compiling():
        _refuse_uneven(tensor, splits, ranks)

    def op(spec: str) -> Sequence[tf.Tensor]:
        rows = tf.zeros([0], tf.int64) if splits is None else splits
        received, counts = native.ops().ringar_alltoall(tensor, rows, spec=spec)
        if not tf.executing_eagerly():
            if tensor.shape.rank:
                received.set_shape([None, *tensor.shape[1:]])
            counts.set_shape([ranks])
        return [received, counts]

    outputs = calls.run_tensors(
        call,
        [tensor],
        op=op,
        results=lambda: [tf.TensorSpec(tensor.shape, tensor.dtype)],
        gradient=_gradient,
    )
    if len(outputs) == 2:
        return outputs[0], outputs[1]
    return outputs[0], tf.fill([ranks], tf.constant(tensor.shape[0] // ranks, tf.int64))


def _refuse_uneven(tensor: tf.Tensor, splits: tf.Tensor | None, ranks: int) -> None:
    rows = compiled.static_shape(tensor, "alltoall")[:1]
    if splits is not None or not rows or rows[0] % ranks:
        raise errors.UnsupportedError(
            "alltoall in a compiled function must get no splits and a first dimension that the "
            f"number of ranks ({ranks}) divides. Received: shape {tensor.shape}, "
            f"splits {splits}. Leave it out of jit_compile."
        )


def _gradient(
    call: Call,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    upstream: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Rows go back where they came from."""
    counts = outputs[1] if len(outputs) == 2 else None
    return [alltoall_tensor(call.gradient(), upstream[0], counts)[0]]


calls.register_gradient("RingarAlltoall", 1, _gradient)
