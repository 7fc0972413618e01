"""Allreduce: every rank gets the sum (average, minimum, maximum, product) over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ringar.collectives import call as calls
from ringar.collectives import repeats
from ringar.collectives.collective import Collective
from ringar.collectives.compression import Compression, Compressor
from ringar.collectives.dtypes import GradientT
from ringar.collectives.ops import Average, ReduceOp
from ringar.collectives.reductions import reduce
from ringar.collectives.ways import define
from ringar.job import tensorflow
from ringar.job.process_sets import ProcessSet

if TYPE_CHECKING:
    import tensorflow as tf

    from ringar.collectives.tensors import Backward


def allreduce(
    tensor: GradientT,
    op: ReduceOp = Average,
    *,
    compression: type[Compressor] = Compression.none,
    algorithm: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> GradientT:
    """Reduce a tensor over all ranks; every rank gets the result, bit for bit the same.

    Args:
        tensor: a TensorFlow tensor or variable, a `tf.IndexedSlices` (whose rows are gathered; op
            Sum or Average), or a NumPy array, of one shape on all ranks. The dtype is float16,
            bfloat16 (both added in float32), float32, float64, int8, uint8, int32 or int64.
        op: Sum, Average, Min, Max or Product. Average needs a floating dtype.
        compression: how float32 travels between hosts: `Compression.none`, `.fp16` or `.bf16`; or
            a compressor of your own (`ringar.Compression`).
        algorithm: the algorithm for several hosts, the same on all ranks. "hierarchical" uses
            shared memory inside a host, and every rank sends a slice of its own between the
            hosts. "ring", "recursive_doubling" and "halving_doubling" run over all ranks through
            the link, as if each had a host of its own; recursive doubling takes the fewest
            rounds, a ring sends the fewest bytes, and halving and doubling sends as few bytes in
            twice the rounds of recursive doubling. None or "auto" takes the environment variable
            RINGAR_ALGORITHM, or else the choice of the cost model. It does not apply to a
            `tf.IndexedSlices`.
        prescale_factor: multiplies each rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Returns:
        A tensor or array of the input's shape and dtype.

    The gradient is that of the sum of all ranks' losses: the upstream gradients of all ranks are
    added, and divided by the number of ranks for Average.

    Raises:
        ValueError: an argument has a value that is not listed. On this rank only.
        MismatchError: ranks disagree on collective, shape, dtype, op or name, or a rank averages
            integers. On every rank.
            (TensorFlow tensors: `tf.errors.InvalidArgumentError`.)
        PeerLostError: a rank died or left. (`tf.errors.AbortedError`.)
        DeadlineError: a rank did not come in time. (`tf.errors.DeadlineExceededError`.)

    Examples:
        What rank 0 of two sees:

        >>> ringar.allreduce(np.array([1.0, 2.0]) * (ringar.rank() + 1))
        array([1.5, 3. ])
        >>> ringar.allreduce(np.array([1, 2]) * (ringar.rank() + 1), ringar.Sum)
        array([3, 6])
        >>> row = tf.constant([ringar.rank()])  # of a table
        >>> gradient = tf.IndexedSlices(tf.ones([1, 2]), row)
        >>> ringar.allreduce(gradient, ringar.Sum).indices.numpy()
        array([0, 1], dtype=int32)
    """
    scales = prescale_factor, postscale_factor
    arguments = ("allreduce", op, compression, *scales, algorithm, name, process_set)
    if repeat := repeats.find(tensor, arguments):
        return repeat(tensor)
    chosen = calls.checked_algorithm(algorithm)
    if tensorflow.is_loaded() and isinstance(tensor, tensorflow.load().IndexedSlices):
        from ringar.collectives import slices

        factors = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
        return slices.gather(tensor, name, process_set, op=op, compression=compression, **factors)[
            0
        ]
    options = (compression, *scales, name, process_set)
    return reduce("allreduce", [tensor], op, *options, algorithm=chosen, arguments=arguments)[0]


def grouped_allreduce(
    tensors: Sequence[GradientT],
    op: ReduceOp = Average,
    *,
    compression: type[Compressor] = Compression.none,
    algorithm: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[GradientT]:
    """Reduce many tensors as if they were one, without copying them together.

    Arguments, results and errors are those of `ringar.allreduce`, with a list of tensors.
    Tensors of different dtypes are allowed and travel one dtype after the other; a
    `tf.IndexedSlices` is made dense.

    Examples:
        What rank 0 of two sees:

        >>> kernel, bias = np.full((2, 2), ringar.rank()), np.array([1.5])
        >>> ringar.grouped_allreduce([kernel, bias], ringar.Sum)
        [array([[1, 1],
               [1, 1]]), array([3.])]
    """
    options = (compression, prescale_factor, postscale_factor, name, process_set)
    chosen = calls.checked_algorithm(algorithm)
    return reduce("allreduce", tensors, op, *options, algorithm=chosen)


def _gradient(back: Backward) -> list[tf.Tensor]:
    """Add the gradients of all ranks: the loss is the sum of the ranks' losses."""
    call = back.call
    if call.op == "sum":
        scale = {"prescale": call.prescale, "postscale": call.postscale, "mean": call.mean}
        return back.run("allreduce", back.upstream, **scale)
    from ringar.collectives.derivatives import derivatives

    total = back.run("allreduce", back.upstream)
    return [
        up * derivative
        for up, derivative in zip(total, derivatives(back, back.outputs), strict=True)
    ]


define("allreduce", Collective(_gradient))
