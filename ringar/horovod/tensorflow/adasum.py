"""Adasum: sums of gradients that take their angles into account.

Maleki et al., "Scaling distributed training with adaptive summation", MLSys 2021, combine two
gradients as (section 3, equation 8)

    Adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b

which is a + b for orthogonal ones and their mean for parallel ones. More ranks combine in a binary
tree: ranks 0 and 1, 2 and 3, then their results, and so on (section 4). A tensor is combined by
itself: each layer has angles of its own.

The paper's recursive vector halving leaves each rank a slice of every vector, after (n-1)/n of
a vector sent; the dot products of a level of the tree are added up over the ranks; doubling
the slices sends (n-1)/n of a vector again. Here the three are collectives: an all-to-all gives each
rank its slice of all n vectors, an allreduce of three numbers for each pair and tensor serves each
level, and an all-gather joins the slices of the result. The bytes are the same, and so is the
number of rounds but for the small allreduces. All ranks get the same bits, and n may be any number:
where a level has an odd vector, it goes on to the next level.

Dot products are added in float64. float16 and bfloat16 are combined in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ringar.collectives import Sum, allgather, allreduce, alltoall
from ringar.collectives.call import by_dtype
from ringar.job.process_sets import ProcessSet, or_all


def adasum(
    tensors: Sequence[tf.Tensor], name: str | None = None, process_set: ProcessSet | None = None
) -> list[tf.Tensor]:
    """Combine tensors over the ranks, each by itself, in common messages.

    Args:
        tensors: floating tensors of known shapes, the same on all ranks.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Raises:
        ValueError: a tensor is of integers.
    """
    if dtypes := [tensor.dtype.name for tensor in tensors if not tensor.dtype.is_floating]:
        raise ValueError(f"Adasum expected floating tensors; received {', '.join(dtypes)}")
    ranks = or_all(process_set)
    results = list(tensors)
    if ranks.size() == 1:
        return results
    for places in by_dtype(tensor.dtype for tensor in tensors):
        combined = _of_one_dtype([tensors[i] for i in places], name or "adasum", ranks)
        for place, result in zip(places, combined, strict=True):
            results[place] = result
    return results


def _of_one_dtype(tensors: Sequence[tf.Tensor], name: str, ranks: ProcessSet) -> list[tf.Tensor]:
    n, dtype = ranks.size(), tensors[0].dtype
    slices = [_slices(tensor, n) for tensor in tensors]
    widths = [part.shape[1] for part in slices]
    received = alltoall(tf.concat(slices, 1), name=f"{name}/slices", process_set=ranks)
    rows = tf.cast(received, tf.float64 if dtype == tf.float64 else tf.float32)
    vectors = [tf.split(row, widths) for row in tf.unstack(rows, n)]  # by rank, by tensor
    level = 0
    while len(vectors) > 1:
        vectors = _level(vectors, f"{name}/level_{level}", ranks)
        level += 1
    row = tf.cast(tf.concat(vectors[0], 0), dtype)[tf.newaxis]
    columns = tf.split(allgather(row, name=f"{name}/results", process_set=ranks), widths, 1)
    return [_tensor_from(part, tensor) for part, tensor in zip(columns, tensors, strict=True)]


def _slices(tensor: tf.Tensor, n: int) -> tf.Tensor:
    """Return a tensor as `[n, width]`, with zeros at the end; they change no dot product."""
    flat = tf.reshape(tensor, [-1])
    return tf.reshape(tf.pad(flat, [[0, -flat.shape[0] % n]]), [n, -1])


def _tensor_from(slices: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.reshape(slices, [-1])[: like.shape.num_elements()], like.shape)


def _level(
    vectors: Sequence[Sequence[tf.Tensor]], name: str, ranks: ProcessSet
) -> list[Sequence[tf.Tensor]]:
    """Combine neighbors; a vector without one stays as it is."""
    pairs = list(zip(vectors[::2], vectors[1::2], strict=False))
    shares = tf.stack([[_dots(x, y) for x, y in zip(a, b, strict=True)] for a, b in pairs])
    dots = allreduce(shares, op=Sum, name=name, process_set=ranks)  # [pairs, tensors, 3]
    combined: list[Sequence[tf.Tensor]] = [
        [_combine(x, y, dots[i, j]) for j, (x, y) in enumerate(zip(a, b, strict=True))]
        for i, (a, b) in enumerate(pairs)
    ]
    return combined + list(vectors[2 * len(pairs) :])


def _dots(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Return a.b, a.a and b.b of this rank's slices, in float64."""
    a, b = tf.cast(a, tf.float64), tf.cast(b, tf.float64)
    return tf.stack([tf.tensordot(p, q, 1) for p, q in ((a, b), (a, a), (b, b))])


def _combine(a: tf.Tensor, b: tf.Tensor, dots: tf.Tensor) -> tf.Tensor:
    product, *norms = tf.unstack(dots)
    # A vector of zeros has no angle, and adds nothing.
    of_a, of_b = (
        tf.cast(1.0 - tf.math.divide_no_nan(product, 2.0 * norm), a.dtype) for norm in norms
    )
    return of_a * a + of_b * b
