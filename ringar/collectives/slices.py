"""Allreduce of sparse gradients: the concatenation of all ranks' rows.

A `tf.IndexedSlices` may name a row more than once, and its consumers add up equal rows. The
concatenation therefore is the sum over the ranks.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from ringar.collectives import call as calls
from ringar.collectives import compression as compressors
from ringar.collectives import ways
from ringar.collectives.allgather import allgather, grouped_allgather
from ringar.collectives.compression import Compressor
from ringar.collectives.ops import Average, ReduceOp, Sum
from ringar.collectives.reductions import refuse_integer_average
from ringar.job import place
from ringar.job.process_sets import ProcessSet


def gather(
    slices: tf.IndexedSlices,
    name: str | None,
    process_set: ProcessSet | None,
    *,
    op: ReduceOp,
    compression: type[Compressor],
    prescale_factor: float,
    postscale_factor: float,
) -> tuple[tf.IndexedSlices, tf.Tensor]:
    """Return the slices of all ranks, scaled by `op` and the factors, and their number per rank.

    Raises:
        ValueError: an argument cannot be used.
    """
    call, ranks = calls.begin("allreduce", process_set, name or "slices")
    if op not in (Sum, Average):
        raise ValueError(
            call.refusal(
                "op ringar.Sum or ringar.Average for tf.IndexedSlices",
                op,
                "tf.convert_to_tensor makes them dense, for the other ops.",
            )
        )
    scale = float(prescale_factor) * float(postscale_factor)
    if op is Average:
        scale /= ranks.size()
    refuse_integer_average(call, slices.dtype.name, op, ranks.size())
    values = slices.values
    if scale != 1.0 and not slices.dtype.is_floating:
        # The engine refuses this allreduce on all ranks; otherwise the others would wait.
        ways.run(dataclasses.replace(call, postscale=scale), [values])
    elif scale != 1.0:
        values *= scale
    wire = compressors.checked(compression)
    values, context = compression.compress(values)
    dtype = values.dtype
    # An all-gather adds nothing on the way, so narrow the values here; on one host do not.
    if wire and dtype == tf.float32 and place.local_size() < place.size():
        values = tf.cast(values, wire)
    gathered = allgather(values, name=name and f"{name}/values", process_set=process_set)
    count = tf.shape(slices.indices, slices.indices.dtype)
    indices, counts = grouped_allgather(
        [slices.indices, count], name=name and f"{name}/indices", process_set=process_set
    )
    values = compression.decompress(tf.cast(gathered, dtype), context)
    return tf.IndexedSlices(values, indices, slices.dense_shape), counts
