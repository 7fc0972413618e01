"""Sparse gradients: an optimizer sees one slice per row, or none.

The gradient of an Embedding is a `tf.IndexedSlices`, which may have many slices of one row and
means their sum. Keras' optimizers compute with each slice by itself. Adam, for example, adds the
squares of the slices, which are not the square of the sum, and the result depends on how the uses
of a row lie in the batch and on the ranks. So slices of equal rows are added before the optimizer
sees them: first on each rank, then over the ranks. All of Keras' optimizers then compute what they
compute with a dense gradient.

The ranks' sums are added in rank order, one rank at a time. So all ranks hold the same bits, also
on GPUs, where TensorFlow's segment sums have no fixed order. A compiled step must know the number
of rows in advance, and gets a dense gradient.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringar.collectives import slices as gathering
from ringar.collectives.compiled import is_compiling, is_for_gpu
from ringar.job.process_sets import ProcessSet, or_all


def merged(slices: tf.IndexedSlices) -> tf.IndexedSlices | tf.Tensor:
    """Add the slices of equal rows; in a compiled step return a dense gradient."""
    if is_compiling():
        return tf.convert_to_tensor(slices)
    rows, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, slices.dense_shape)


def reduced(
    slices: tf.IndexedSlices, name: str, process_set: ProcessSet | None, options: dict[str, Any]
) -> tf.IndexedSlices | tf.Tensor:
    """Reduce slices over the ranks by gathering, and add those of equal rows.

    Args:
        slices: this rank's gradient, for which `is_better_dense` is false.
        name: the name of the collectives.
        process_set: the ranks that take part.
        options: the op, the compression and the factors, as for `ringar.allreduce`.
    """
    if is_compiling():
        return tf.convert_to_tensor(gathering.gather(slices, name, process_set, **options)[0])
    gathered, counts = gathering.gather(merged(slices), name, process_set, **options)
    rows, places = tf.unique(gathered.indices)
    total = tf.zeros(tf.concat([[tf.size(rows)], tf.shape(gathered.values)[1:]], 0), gathered.dtype)
    ranks = or_all(process_set).size()
    of_ranks = (tf.split(tensor, counts, num=ranks) for tensor in (places, gathered.values))
    for its_places, its_values in zip(*of_ranks, strict=True):
        total = tf.tensor_scatter_nd_add(total, its_places[:, tf.newaxis], its_values)
    return tf.IndexedSlices(total, rows, gathered.dense_shape)


def is_better_dense(slices: tf.IndexedSlices) -> bool:
    """Return whether a step has to make the gradient dense before the reduction."""
    if not is_compiling():
        return False
    # The trace must know how many rows will be gathered. XLA adds them up in any order on a GPU.
    parts = (slices.values, slices.indices)
    return is_for_gpu() or not all(part.shape.is_fully_defined() for part in parts)
