"""All-gather: every rank gets the rows of all ranks, in the order of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ringar.collectives import call as calls
from ringar.collectives import repeats
from ringar.collectives.call import Call
from ringar.collectives.collective import Collective
from ringar.collectives.dtypes import ArrayT
from ringar.collectives.ways import define, run, values_of
from ringar.job import process_sets
from ringar.job.process_sets import ProcessSet

if TYPE_CHECKING:
    import tensorflow as tf

    from ringar.collectives.tensors import Backward


def allgather(
    tensor: ArrayT, *, name: str | None = None, process_set: ProcessSet | None = None
) -> ArrayT:
    """Concatenate the tensors of all ranks along the first dimension.

    Args:
        tensor: a TensorFlow tensor or a NumPy array of at least one dimension. Ranks may differ in
            the first dimension only, and not in compiled functions; any dtype but strings.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Returns:
        A tensor or array whose first dimension is the sum over the ranks.

    The gradient is that of the sum of all ranks' losses: a rank gets the sum of the upstream
    gradients that all ranks have for its rows. Horovod divides it by the number of ranks.

    Raises:
        RingarError: as `ringar.allreduce`.

    Examples:
        What rank 0 of two sees:

        >>> rows = np.full((ringar.rank() + 1, 2), ringar.rank())  # one row, and two on rank 1
        >>> ringar.allgather(rows)
        array([[0, 0],
               [1, 1],
               [1, 1]])
    """
    arguments = ("allgather", name, process_set)
    if repeat := repeats.find(tensor, arguments):
        return repeat(tensor)
    return _gather([tensor], name, process_set, arguments)[0]


def grouped_allgather(
    tensors: Sequence[ArrayT], *, name: str | None = None, process_set: ProcessSet | None = None
) -> list[ArrayT]:
    """All-gather many tensors at once; see `ringar.allgather`.

    Examples:
        What rank 0 of two sees:

        >>> ringar.grouped_allgather([np.array([ringar.rank()]), np.array([True])])
        [array([0, 1]), array([ True,  True])]
    """
    return _gather(tensors, name, process_set)


def _gather(
    tensors: Sequence[ArrayT],
    name: str | None,
    process_set: ProcessSet | None,
    arguments: tuple[Any, ...] = (),
) -> list[ArrayT]:
    values = values_of(tensors, "allgather")
    if not values:
        return []
    call, _ = calls.begin("allgather", process_set, name)
    return run(call, values, arguments)


def _rows_of_all(call: Call, rows: int) -> int:
    return rows * process_sets.size_of(call.process_set)


def _gradient(back: Backward) -> list[tf.Tensor]:
    """Return to each rank the sum over all ranks of the gradients of its rows."""
    if len(back.outputs) == len(back.inputs):  # compiled: the same rows on every rank
        return back.run("reducescatter", back.upstream)
    import tensorflow as tf

    grads: list[tf.Tensor] = []
    for up, rows in zip(back.upstream, tf.unstack(back.outputs[-1], len(back.inputs)), strict=True):
        grads += back.run("reducescatter", [up], rows)
    return grads


# The op has one more output: the number of rows from each rank [tensors, ranks].
define("allgather", Collective(_gradient, rows=_rows_of_all, ranks_may_differ=True))
