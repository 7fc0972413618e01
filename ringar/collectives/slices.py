"""Allreduce of sparse gradients: the concatenation of all ranks' rows.

A `tf.IndexedSlices` may name a row more than once, and its consumers add up equal rows. The
concatenation therefore is the sum over the ranks.
"""

from __future__ import annotations

import tensorflow as tf

from ringar.collectives import call as calls
from ringar.collectives import compression as compressors
from ringar.collectives.allgather import allgather
from ringar.collectives.compression import Compressor
from ringar.collectives.ops import Average, ReduceOp, Sum
from ringar.collectives.reductions import refuse_integer_average
from ringar.job import place
from ringar.job.process_sets import ProcessSet


def allreduce(
    slices: tf.IndexedSlices,
    op: ReduceOp,
    compression: type[Compressor],
    prescale_factor: float,
    postscale_factor: float,
    name: str | None,
    process_set: ProcessSet | None,
) -> tf.IndexedSlices:
    """Reduce slices over all ranks by gathering the rows of all ranks."""
    call, ranks = calls.begin("allreduce", process_set, name or "slices")
    if op not in (Sum, Average):
        raise ValueError(
            call.refusal(
                "op ringar.Sum or ringar.Average for tf.IndexedSlices",
                op,
                "tf.convert_to_tensor makes them dense, for the other ops.",
            )
        )
    refuse_integer_average(call, slices.dtype, op)
    scale = float(prescale_factor) * float(postscale_factor)
    if op is Average:
        scale /= ranks.size()
    if scale != 1.0 and not slices.dtype.is_floating:
        raise ValueError(
            call.refusal(
                "a floating dtype where there are prescale and postscale factors, since other "
                "results would be cut off",
                f"{slices.dtype.name} and factors of {scale}",
                "Cast the values first, or leave the factors out.",
            )
        )
    values = slices.values if scale == 1.0 else slices.values * scale
    narrow = compressors.checked(compression)
    values, context = compression.compress(values)
    wide = values.dtype
    # An all-gather adds nothing on the way, so narrow the values here. On one host nothing is
    # narrowed.
    if narrow and wide == tf.float32 and place.local_size() < place.size():
        values = tf.cast(values, narrow)
    where = {"process_set": process_set}
    gathered = allgather(values, name=name and f"{name}/values", **where)
    return tf.IndexedSlices(
        compression.decompress(tf.cast(gathered, wide), context),
        allgather(slices.indices, name=name and f"{name}/indices", **where),
        slices.dense_shape,
    )
