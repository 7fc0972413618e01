"""All-gather: every rank gets the rows of all ranks, in the order of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringar import native, runtime
from ringar.collectives import call as calls
from ringar.collectives.call import Call
from ringar.runtime import ProcessSet


@calls.as_it_is
def allgather(
    tensor: Any, *, name: str | None = None, process_set: ProcessSet | None = None
) -> Any:
    """Concatenates the tensors of all ranks along the first dimension.

    Args:
        tensor: a TensorFlow tensor or a NumPy array of at least one dimension. Ranks may differ in
            the first dimension (not in compiled functions), and in no other; any dtype but strings.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Returns:
        A tensor or array whose first dimension is the sum over the ranks.

    Raises:
        As :func:`ringar.allreduce`.
    """
    return grouped_allgather([tensor], name=name, process_set=process_set)[0]


@calls.as_it_is
def grouped_allgather(
    tensors: Sequence[Any], *, name: str | None = None, process_set: ProcessSet | None = None
) -> list[Any]:
    """All-gathers many tensors at once; see :func:`allgather`."""
    if not tensors:
        return []
    call, _ = calls.begin("allgather", process_set, name)
    if calls.is_numpy(tensors):
        arrays = calls.as_arrays(tensors)
        return calls.by_dtype(arrays, lambda group: calls.run_numpy(call, group, outputs=None)[0])
    values = [tf.convert_to_tensor(t) for t in tensors]
    return calls.by_dtype(values, lambda group: allgather_tensors(call, group)[:-1])


def allgather_tensors(call: Call, tensors: list[tf.Tensor]) -> Sequence[tf.Tensor]:
    """The op itself, on tensors of one dtype; the last output are the row counts [N, ranks]."""
    ranks = runtime.size_of(call.process_set)

    def op(spec: str) -> Sequence[tf.Tensor]:
        gathered, rows = native.ops().ringar_allgather(tensors, spec=spec)
        if not tf.executing_eagerly():
            for tensor, output in zip(tensors, gathered, strict=True):
                if tensor.shape.rank:
                    output.set_shape([None, *tensor.shape[1:]])
            rows.set_shape([len(tensors), ranks])
        return [*gathered, rows]

    outputs = calls.run_tensors(
        call,
        tensors,
        op=op,
        results=lambda: [
            tf.TensorSpec([calls.rows_of(t) * ranks, *t.shape[1:]], t.dtype) for t in tensors
        ],
        gradient=_gradient,
    )
    if len(outputs) > len(tensors):
        return outputs
    return [*outputs, tf.constant([[calls.rows_of(t)] * ranks for t in tensors], tf.int64)]


def _gradient(
    call: Call,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    upstream: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Each rank gets back the sum over all ranks of the gradients of its rows."""
    from ringar.collectives.reducescatter import reducescatter_tensors

    if len(outputs) == len(inputs):  # compiled: the same rows on every rank
        even = call.gradient(collective="reducescatter")
        return list(reducescatter_tensors(even, list(upstream), None))
    grads: list[tf.Tensor] = []
    for i, up in enumerate(upstream):
        one = call.gradient(collective="reducescatter")
        grads += reducescatter_tensors(one, [up], outputs[-1][i])
    return grads


calls.register_gradient("RingarAllgather", None, _gradient)
