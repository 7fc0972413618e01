"""Where Horovod's collectives differ from ringar's: integers, slices, the scale of gradients.

ringar's gradient of a rank's input is that of the sum of all ranks' losses. Horovod's differs by
the number of ranks n: it is 1/n of that for all-gathers and broadcasts, and n times that for
reduce-scatters. So the input of these passes through an identity whose gradient has the factor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from ringar import collectives
from ringar.collectives import compiled
from ringar.collectives.compression import checked
from ringar.horovod.common.reduce_op import Adasum, Average, ReduceOp, Sum
from ringar.horovod.tensorflow import handles
from ringar.horovod.tensorflow.adasum import adasum
from ringar.horovod.tensorflow.compression import NoneCompressor
from ringar.horovod.tensorflow.place_ops import size_op
from ringar.job.process_sets import ProcessSet

Compressor: TypeAlias = type[Any]
"""A class with the static methods `compress` and `decompress`."""


def issue(collective: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a collective of ringar after those that `*_async` functions have started."""
    handles.wait_for_all()
    return collective(*args, **kwargs)


def reduce_dense(
    tensors: Sequence[tf.Tensor],
    compression: Compressor,
    op: ReduceOp,
    factors: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
    collective: Callable[..., list[tf.Tensor]] = collectives.grouped_allreduce,
) -> list[tf.Tensor]:
    """Reduce tensors as `hvd.allreduce` does, together; by `collective`, if the op is no Adasum."""
    if not tensors:
        return []
    wire = _on_the_wire(compression)
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    values = [value for value, _ in pairs]
    if op is Adasum:
        handles.wait_for_all()
        values = [_times(value, factors[0]) for value in values]
        reduced = [_times(v, factors[1]) for v in adasum(values, name, process_set)]
    else:
        reduced = _reduce(collective, values, op, wire, factors, name, process_set)
    return [
        compression.decompress(value, context)
        for value, (_, context) in zip(reduced, pairs, strict=True)
    ]


def gather(
    tensors: Sequence[tf.Tensor], name: str | None, process_set: ProcessSet
) -> list[tf.Tensor]:
    """All-gather tensors, with Horovod's gradient."""
    scaled = with_gradient_times(lambda n: 1 / n, tensors, process_set)
    return list(issue(collectives.grouped_allgather, scaled, name=name, process_set=process_set))


def reducescatter(
    tensors: Sequence[tf.Tensor],
    compression: Compressor,
    op: ReduceOp,
    factors: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    """Reduce-scatter tensors as `hvd.reducescatter` does, together."""
    if op is Adasum:
        raise NotImplementedError("reducescatter has no op Adasum")
    scaled = with_gradient_times(lambda n: n, tensors, process_set)
    collective = collectives.grouped_reducescatter
    return reduce_dense(scaled, compression, op, factors, name, process_set, collective)


def alltoall_evenly(tensor: tf.Tensor, name: str | None, process_set: ProcessSet) -> tf.Tensor:
    """Send equally many rows to all ranks; raise on all ranks if the rows do not divide evenly.

    ringar itself would give the first ranks one row more. So unless the rows are known to divide
    evenly, it gets splits, whose sum it checks.
    """
    exchange = functools.partial(issue, collectives.alltoall, name=name, process_set=process_set)
    rank, ranks = tensor.shape.rank, len(process_set.ranks)
    rows = tensor.shape[0] if rank else rank  # 0 for scalars, which the engine refuses
    if compiled.is_compiling() or (rows is not None and rows % ranks == 0):
        return exchange(tensor)  # compiled code refuses other rows by itself
    received, _ = exchange(tensor, tf.fill([ranks], tf.shape(tensor, tf.int64)[0] // ranks))
    return received


def _reduce(
    collective: Callable[..., list[tf.Tensor]],
    values: Sequence[tf.Tensor],
    op: ReduceOp,
    wire: Compressor,
    factors: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    """Reduce floating tensors by ringar's collective, and integers by rules of Horovod."""
    results: list[Any] = [None] * len(values)
    before, after = factors
    for floats in (True, False):
        places = [i for i, value in enumerate(values) if value.dtype.is_floating is floats]
        if not places:
            continue
        operands = [values[i] for i in places]
        if floats:
            reduced = issue(
                collective,
                operands,
                op.of_ringar,
                compression=wire,
                prescale_factor=before,
                postscale_factor=after,
                name=name,
                process_set=process_set,
            )
        else:
            operands = [_times(value, before) for value in operands]
            plain = Sum if op is Average else op
            reduced = issue(
                collective, operands, plain.of_ringar, name=name, process_set=process_set
            )
            if op is Average:
                ranks = tf.cast(_size(process_set), tf.int64)
                means = [tf.truncatediv(tf.cast(total, tf.int64), ranks) for total in reduced]
                reduced = [tf.cast(m, x.dtype) for m, x in zip(means, operands, strict=True)]
            reduced = [_times(value, after) for value in reduced]
        for place, result in zip(places, reduced, strict=True):
            results[place] = result
    return results


def reduce_slices(
    slices: Sequence[tf.IndexedSlices],
    op: ReduceOp,
    factors: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
) -> list[tf.IndexedSlices]:
    """Gather the rows of all ranks, divided by the number of ranks for an average."""
    if not slices:
        return []
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"allreduce of tf.IndexedSlices expected Average or Sum, received {op.name}; pass "
            "sparse_as_dense=True to the optimizer or the tape, or tf.convert_to_tensor(slices)"
        )
    if factors != (1.0, 1.0):
        raise NotImplementedError("allreduce of tf.IndexedSlices takes no factors")
    values = gather([rows.values for rows in slices], name and f"{name}/values", process_set)
    indices = gather([rows.indices for rows in slices], name and f"{name}/indices", process_set)
    if op is Average:
        ranks = _size(process_set)
        values = [value / tf.cast(ranks, value.dtype) for value in values]
    return [
        tf.IndexedSlices(value, index, rows.dense_shape)
        for value, index, rows in zip(values, indices, slices, strict=True)
    ]


def _on_the_wire(compression: Compressor) -> Compressor:
    """Return the part of a compressor that acts within a collective: a dtype between hosts.

    Raises:
        ValueError: a collective cannot use `compression`.
    """
    return compression if checked(compression) else NoneCompressor


def _size(process_set: ProcessSet) -> tf.Tensor:
    return size_op(process_set.process_set_id or 0)


def _times(tensor: tf.Tensor, factor: float) -> tf.Tensor:
    """Return a tensor times a factor; a product of integers is cut off."""
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_floating:
        return tensor * tf.cast(factor, tensor.dtype)
    return tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype)


def with_gradient_times(
    factor: Callable[[Any], Any], tensors: Sequence[tf.Tensor], process_set: ProcessSet
) -> list[tf.Tensor]:
    """Return the tensors, and their gradients times a function of the number of ranks."""

    @tf.custom_gradient
    def identity(x: tf.Tensor) -> Any:
        def scaled(upstream: tf.Tensor) -> tf.Tensor:
            ranks = tf.cast(_size(process_set), upstream.dtype)
            return upstream * factor(ranks)

        return tf.identity(x), scaled

    converted = [tf.convert_to_tensor(tensor) for tensor in tensors]
    return [identity(tensor) if tensor.dtype.is_floating else tensor for tensor in converted]
