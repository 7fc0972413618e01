"""Reduce-scatter: the sum over all ranks, of which each rank keeps its share of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringar import native, runtime
from ringar.collectives import call as calls
from ringar.collectives import compiled
from ringar.collectives.call import Call
from ringar.collectives.ops import Average, ReduceOp
from ringar.compression import Compression
from ringar.runtime import ProcessSet


@calls.as_it_is
def reducescatter(
    tensor: Any,
    op: ReduceOp = Average,
    *,
    compression: Any = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Reduces a tensor over all ranks and leaves each rank a share of the rows.

    Args:
        tensor: as for :func:`ringar.allreduce`, of at least one dimension.
        op: Sum, Average, Min, Max or Product.
        compression: what travels between ranks.
        prescale_factor: multiplies each rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Returns:
        Rank r's share: the first dimension is dealt out evenly and in order; where it cannot be
        divided, the first ranks get one row more.

    Raises:
        As :func:`ringar.allreduce`.
    """
    return grouped_reducescatter(
        [tensor],
        op,
        compression=compression,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
    )[0]


@calls.as_it_is
def grouped_reducescatter(
    tensors: Sequence[Any],
    op: ReduceOp = Average,
    *,
    compression: Any = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[Any]:
    """Reduce-scatters many tensors at once; see :func:`reducescatter`."""
    from ringar.collectives.allreduce import refuse_integer_average, with_op

    if not tensors:
        return []
    call, ranks = calls.begin(
        "reducescatter", process_set, name, prescale=prescale_factor, postscale=postscale_factor
    )
    call = with_op(call, op, ranks.size())
    numpy = calls.is_numpy(tensors)
    values = calls.as_arrays(tensors) if numpy else [tf.convert_to_tensor(t) for t in tensors]
    for value in values:
        refuse_integer_average(value, op)
    pairs = [compression.compress(value) for value in values]

    def run(group: list[Any]) -> Sequence[Any]:
        return _scatter_arrays(call, group) if numpy else reducescatter_tensors(call, group, None)

    reduced = calls.by_dtype([value for value, _ in pairs], run)
    return [
        compression.decompress(value, context)
        for value, (_, context) in zip(reduced, pairs, strict=True)
    ]


def share(rows: int, ranks: int, rank: int) -> int:
    """How many of ``rows`` rank ``rank`` keeps (even_share in tf_ops/engine/request.h)."""
    return rows // ranks + (1 if rank < rows % ranks else 0)


def _scatter_arrays(call: Call, arrays: list[np.ndarray]) -> list[np.ndarray]:
    ranks, place = runtime.size_of(call.process_set), runtime.place_in(call.process_set)
    outputs = [
        np.empty((share(a.shape[0], ranks, place), *a.shape[1:]) if a.ndim else (), a.dtype)
        for a in arrays
    ]
    results: list[np.ndarray]
    results, _ = calls.run_numpy(call, arrays, outputs=outputs)
    return results


def reducescatter_tensors(
    call: Call, tensors: list[tf.Tensor], splits: tf.Tensor | None
) -> Sequence[tf.Tensor]:
    """The op itself, on tensors of one dtype; ``splits``: rows per rank, None for evenly."""
    ranks, place = runtime.size_of(call.process_set), runtime.place_in(call.process_set)

    def op(spec: str) -> Sequence[tf.Tensor]:
        rows = tf.zeros([0], tf.int64) if splits is None else splits
        outputs = native.ops().ringar_reducescatter(tensors, rows, spec=spec)
        if not tf.executing_eagerly():
            for tensor, output in zip(tensors, outputs, strict=True):
                if tensor.shape.rank:
                    output.set_shape([None, *tensor.shape[1:]])
        return list(outputs)

    def results() -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec([share(calls.rows_of(t), ranks, place), *t.shape[1:]], t.dtype)
            for t in tensors
        ]

    return calls.run_tensors(call, tensors, op=op, results=results, gradient=_gradient)


def _gradient(
    call: Call,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    upstream: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Each row was kept by one rank: its gradient comes from there, and is the same everywhere."""
    from ringar.collectives.allreduce import slopes_of

    rows = _rows_of_all_ranks(call, inputs, upstream)
    if call.op != "sum":
        slopes = slopes_of(call, inputs, None)
        return [row * slope for row, slope in zip(rows, slopes, strict=True)]
    scale = call.prescale * call.postscale
    return rows if scale == 1.0 else [row * scale for row in rows]


def _rows_of_all_ranks(
    call: Call, inputs: Sequence[tf.Tensor], shares: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """What all ranks have for the rows that they kept, in the shapes of the inputs."""
    from ringar.collectives.allgather import allgather_tensors

    gather = call.gradient(collective="allgather")
    ranks = runtime.size_of(call.process_set)
    if not compiled.is_compiling() or all(
        x.shape.rank == 0 or x.shape[0] % ranks == 0 for x in inputs
    ):
        return list(allgather_tensors(gather, list(shares))[:-1])
    # Compiled all-gathers need equal rows: pad every share to the longest, then cut.
    padded = []
    for x, part in zip(inputs, shares, strict=True):
        longest = share(calls.rows_of(x), ranks, 0)
        rest = [[0, 0]] * (x.shape.rank - 1)
        padded.append(tf.pad(part, [[0, longest - part.shape[0]], *rest]))
    whole = []
    for x, gathered in zip(inputs, allgather_tensors(gather, padded)[:-1], strict=True):
        rows, longest = calls.rows_of(x), share(calls.rows_of(x), ranks, 0)
        parts = [gathered[r * longest :][: share(rows, ranks, r)] for r in range(ranks)]
        whole.append(tf.concat(parts, 0))
    return whole


calls.register_gradient("RingarReducescatter", None, _gradient)
