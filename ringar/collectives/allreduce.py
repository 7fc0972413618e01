"""Allreduce: every rank gets the sum (average, minimum, maximum, product) over all ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringar import native, runtime
from ringar.collectives import call as calls
from ringar.collectives.allgather import allgather, allgather_tensors
from ringar.collectives.call import Call
from ringar.collectives.ops import Average, ReduceOp, Sum
from ringar.compression import Compression
from ringar.runtime import ProcessSet


@calls.as_it_is
def allreduce(
    tensor: Any,
    op: ReduceOp = Average,
    *,
    compression: Any = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Reduces a tensor over all ranks; every rank gets the result, bit for bit the same.

    Args:
        tensor: a TensorFlow tensor or variable, a ``tf.IndexedSlices`` (whose rows are gathered; op
            Sum or Average), or a NumPy array. float16, bfloat16 (both added in float32), float32,
            float64, int8, uint8, int32 or int64, of one shape on all ranks.
        op: Sum, Average, Min, Max or Product. Average needs a floating dtype.
        compression: what travels between ranks: ``Compression.none``, ``.fp16`` or ``.bf16``.
        prescale_factor: multiplies each rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Returns:
        A tensor or array of the shape and dtype given.

    Raises:
        MismatchError (NumPy) or tf.errors.InvalidArgumentError: ranks disagree on collective,
            shape, dtype, op or name. On every rank.
        PeerLostError or tf.errors.AbortedError: a rank died or left.
        DeadlineError or tf.errors.DeadlineExceededError: a rank did not come in time.
    """
    options = {
        "compression": compression,
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "name": name,
        "process_set": process_set,
    }
    if isinstance(tensor, tf.IndexedSlices):
        return _allreduce_slices(tensor, op, **options)
    return grouped_allreduce([tensor], op, **options)[0]


@calls.as_it_is
def grouped_allreduce(
    tensors: Sequence[Any],
    op: ReduceOp = Average,
    *,
    compression: Any = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[Any]:
    """Reduces many tensors as if they were one, without copying them together.

    Arguments, results and errors are those of :func:`allreduce`, with a list of tensors. Tensors of
    different dtypes are allowed and travel one dtype after the other.
    """
    if not tensors:
        return []
    call, ranks = calls.begin(
        "allreduce", process_set, name, prescale=prescale_factor, postscale=postscale_factor
    )
    call = with_op(call, op, ranks.size())
    numpy = calls.is_numpy(tensors)
    values = calls.as_arrays(tensors) if numpy else [tf.convert_to_tensor(t) for t in tensors]
    for value in values:
        refuse_integer_average(value, op)
    pairs = [compression.compress(value) for value in values]
    run = _reduce_arrays if numpy else allreduce_tensors
    reduced = calls.by_dtype([value for value, _ in pairs], lambda group: run(call, group))
    return [
        compression.decompress(value, context)
        for value, (_, context) in zip(reduced, pairs, strict=True)
    ]


def with_op(call: Call, op: ReduceOp, ranks: int) -> Call:
    """The call with its op; an average is a scaled sum.

    Raises:
        ValueError: something else than a ReduceOp.
    """
    if not isinstance(op, ReduceOp):
        raise ValueError(
            "op must be ringar.Sum, ringar.Average, ringar.Min, ringar.Max or ringar.Product. "
            f"Received: {op!r}"
        )
    if op is Average:
        return dataclasses.replace(call, op="sum", postscale=call.postscale / ranks)
    return dataclasses.replace(call, op=op.value)


def refuse_integer_average(value: Any, op: ReduceOp) -> None:
    """Raises ValueError where an average would be cut off to an integer."""
    dtype = tf.as_dtype(value.dtype)
    if op is Average and not dtype.is_floating:
        raise ValueError(
            "op=ringar.Average must be used with a floating dtype, since the average of integers "
            f"would be cut off. Received: {dtype.name}. Use op=ringar.Sum and divide, or cast."
        )


def _reduce_arrays(call: Call, arrays: list[np.ndarray]) -> list[np.ndarray]:
    results: list[np.ndarray]
    results, _ = calls.run_numpy(call, arrays, outputs=[np.empty_like(a) for a in arrays])
    return results


def allreduce_tensors(call: Call, tensors: list[tf.Tensor]) -> Sequence[tf.Tensor]:
    """The op itself, on tensors of one dtype."""
    return calls.run_tensors(
        call,
        tensors,
        op=lambda spec: native.ops().ringar_allreduce(tensors, spec=spec),
        results=lambda: [tf.TensorSpec(t.shape, t.dtype) for t in tensors],
        gradient=_gradient,
    )


def _gradient(
    call: Call,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    upstream: Sequence[tf.Tensor],
) -> Sequence[tf.Tensor]:
    """The loss is the sum of the ranks' losses, so every input sees every rank's gradient."""
    if call.op == "sum":
        return allreduce_tensors(
            call.gradient(prescale=call.prescale, postscale=call.postscale), list(upstream)
        )
    total = allreduce_tensors(call.gradient(), list(upstream))
    slopes = slopes_of(call, inputs, outputs)
    return [up * slope for up, slope in zip(total, slopes, strict=True)]


def slopes_of(
    call: Call, inputs: Sequence[tf.Tensor], results: Sequence[tf.Tensor] | None
) -> list[tf.Tensor]:
    """How the minimum, maximum or product over the ranks changes with this rank's inputs.

    ``results``: what an allreduce of the inputs gave, None where only a part of it is known.
    """
    if call.op == "product":
        return _slopes_of_product(call, inputs)
    return _slopes_of_extremum(call, inputs, results)


def _slopes_of_extremum(
    call: Call, inputs: Sequence[tf.Tensor], results: Sequence[tf.Tensor] | None
) -> list[tf.Tensor]:
    """1 where this rank holds the extremum, shared evenly between ranks that tie."""
    scale = call.prescale * call.postscale
    if results is not None and (call.prescale, call.postscale) == (1.0, 1.0):
        extremes = results
    else:
        # Not by scaling the inputs once more: compiled code may round the products differently.
        flipped = {"min": "max", "max": "min"}
        op = flipped[call.op] if call.prescale < 0 else call.op
        extremes = allreduce_tensors(call.gradient(collective="allreduce", op=op), list(inputs))
    holds = [tf.cast(tf.equal(x, e), x.dtype) for x, e in zip(inputs, extremes, strict=True)]
    holders = allreduce_tensors(call.gradient(collective="allreduce"), holds)
    return [
        h / tf.maximum(n, tf.ones([], n.dtype)) * scale for h, n in zip(holds, holders, strict=True)
    ]


def _slopes_of_product(call: Call, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The product of the other ranks' inputs; not product / input, which fails at 0."""
    stacked = [tf.expand_dims(x * call.prescale, 0) for x in inputs]
    gathered = allgather_tensors(call.gradient(collective="allgather"), stacked)[:-1]
    slopes = []
    for mine, everyone in zip(stacked, gathered, strict=True):
        ranks = tf.shape(everyone)[0]
        # All ranks hold the same rows; this rank's own is the one that its place says.
        others = tf.range(ranks) != runtime.place_in(call.process_set)
        mask = tf.reshape(others, tf.concat([[ranks], tf.ones([tf.rank(mine) - 1], tf.int32)], 0))
        kept = tf.where(mask, everyone, tf.ones([], everyone.dtype))
        slopes.append(tf.reduce_prod(kept, axis=0) * (call.prescale * call.postscale))
    return slopes


calls.register_gradient("RingarAllreduce", None, _gradient)


def _allreduce_slices(slices: tf.IndexedSlices, op: ReduceOp, **options: Any) -> tf.IndexedSlices:
    """Sparse gradients: the rows of all ranks, one after the other; adding them up is the sum."""
    if op not in (Sum, Average):
        raise ValueError(f"op must be Sum or Average for tf.IndexedSlices. Received: {op}")
    refuse_integer_average(slices.values, op)
    name, process_set = options["name"], options["process_set"]
    compression = options["compression"]
    _, ranks = calls.begin("allgather", process_set, name or "slices")
    scale = float(options["prescale_factor"]) * float(options["postscale_factor"])
    if op is Average:
        scale /= ranks.size()
    if scale != 1.0 and not slices.dtype.is_floating:
        raise ValueError(
            "prescale_factor and postscale_factor must be used with a floating dtype, since other "
            f"results would be cut off. Received: {slices.dtype.name}, factors of {scale}"
        )
    values = slices.values if scale == 1.0 else slices.values * scale
    values, context = compression.compress(values)
    where = {"process_set": process_set}
    gathered = allgather(values, name=name and f"{name}/values", **where)
    return tf.IndexedSlices(
        compression.decompress(gathered, context),
        allgather(slices.indices, name=name and f"{name}/indices", **where),
        slices.dense_shape,
    )
