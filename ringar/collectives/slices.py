"""Allreduce of sparse gradients: the rows of all ranks, one after the other.

``tf.IndexedSlices`` may name a row more than once, and whoever uses them adds up what it finds. The
sum over the ranks is therefore their concatenation.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringar.collectives import call as calls
from ringar.collectives.allgather import allgather
from ringar.collectives.ops import Average, ReduceOp, Sum
from ringar.collectives.reductions import refuse_integer_average
from ringar.runtime import ProcessSet


def allreduce(
    slices: tf.IndexedSlices,
    op: ReduceOp,
    compression: Any,
    prescale_factor: float,
    postscale_factor: float,
    name: str | None,
    process_set: ProcessSet | None,
) -> tf.IndexedSlices:
    """What :func:`ringar.allreduce` does with slices."""
    if op not in (Sum, Average):
        raise ValueError(f"op must be Sum or Average for tf.IndexedSlices. Received: {op}")
    refuse_integer_average(slices.values, op)
    _, ranks = calls.begin("allgather", process_set, name or "slices")
    scale = float(prescale_factor) * float(postscale_factor)
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
