"""Reduce-scatter: each rank gets its share of the rows of the sum over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ringar.collectives.call import Call
from ringar.collectives.collective import Collective
from ringar.collectives.compression import Compression, Compressor
from ringar.collectives.dtypes import GradientT
from ringar.collectives.ops import Average, ReduceOp
from ringar.collectives.reductions import reduce
from ringar.collectives.ways import define
from ringar.job import process_sets
from ringar.job.process_sets import ProcessSet

if TYPE_CHECKING:
    import tensorflow as tf

    from ringar.collectives.tensors import Backward


def reducescatter(
    tensor: GradientT,
    op: ReduceOp = Average,
    *,
    compression: type[Compressor] = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> GradientT:
    """Reduce a tensor over all ranks and leave each rank a share of the rows.

    Arguments and errors are those of `ringar.allreduce`; the tensor has at least one
    dimension, and a `tf.IndexedSlices` is made dense.

    Returns:
        This rank's share. The shares follow the order of the ranks and are even, with one row
        more for the first ranks where a rest is left.

    The gradient is that of the sum of all ranks' losses: a rank gets, for each row, the upstream
    gradient of the rank that keeps the row, divided by the number of ranks for Average. For Sum,
    Horovod multiplies it by the number of ranks.

    Examples:
        What rank 0 of two sees:

        >>> ringar.reducescatter(np.arange(5), ringar.Sum)  # rank 1 gets array([6, 8])
        array([0, 2, 4])
    """
    options = (compression, prescale_factor, postscale_factor, name, process_set)
    return reduce("reducescatter", [tensor], op, *options)[0]


def grouped_reducescatter(
    tensors: Sequence[GradientT],
    op: ReduceOp = Average,
    *,
    compression: type[Compressor] = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[GradientT]:
    """Reduce-scatter many tensors at once; see `ringar.reducescatter`.

    Examples:
        What rank 0 of two sees:

        >>> ringar.grouped_reducescatter([np.arange(4), np.ones(2)], ringar.Sum)
        [array([0, 2]), array([2.])]
    """
    options = (compression, prescale_factor, postscale_factor, name, process_set)
    return reduce("reducescatter", tensors, op, *options)


def share(rows: int, ranks: int, rank: int) -> int:
    """Return the number of rows that `rank` keeps (even_share in tf_ops/engine/request.h)."""
    return rows // ranks + (1 if rank < rows % ranks else 0)


def _own_share(call: Call, rows: int) -> int:
    return share(
        rows, process_sets.size_of(call.process_set), process_sets.rank_in(call.process_set)
    )


def _gradient(back: Backward) -> list[tf.Tensor]:
    """Gather the gradient of each row from the rank that keeps the row."""
    from ringar.collectives.derivatives import derivatives

    rows = _rows_of_all_ranks(back)
    if back.call.op != "sum":
        return [row * derivative for row, derivative in zip(rows, derivatives(back), strict=True)]
    scale = back.call.prescale * back.call.postscale
    return rows if scale == 1.0 else [row * scale for row in rows]


def _rows_of_all_ranks(back: Backward) -> list[tf.Tensor]:
    """Return the gradients of the shares of all ranks, in the shapes of the inputs."""
    import tensorflow as tf

    from ringar.collectives import compiled

    ranks = process_sets.size_of(back.call.process_set)
    if not compiled.is_compiling() or all(
        x.shape.rank == 0 or x.shape[0] % ranks == 0 for x in back.inputs
    ):
        return back.run("allgather", back.upstream)
    # Compiled all-gathers need equal rows: pad every share to the longest, then cut.
    padded = []
    for x, up in zip(back.inputs, back.upstream, strict=True):
        padding = share(x.shape[0], ranks, 0) - up.shape[0]
        padded.append(tf.pad(up, [[0, padding], *[[0, 0]] * (x.shape.rank - 1)]))
    gradients = []
    for x, gathered in zip(back.inputs, back.run("allgather", padded), strict=True):
        rows, longest = x.shape[0], share(x.shape[0], ranks, 0)
        parts = [gathered[r * longest :][: share(rows, ranks, r)] for r in range(ranks)]
        gradients.append(tf.concat(parts, 0))
    return gradients


define(
    "reducescatter",
    Collective(_gradient, arguments=lambda tensors, splits: [tensors, splits], rows=_own_share),
)
