"""All-to-all: every rank sends some of its rows to every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np

from ringar import errors
from ringar.collectives import call as calls
from ringar.collectives.call import Call
from ringar.collectives.collective import NO_SPLITS, Collective
from ringar.collectives.dtypes import Array, ArrayT
from ringar.collectives.ways import define, values_of
from ringar.job import native, tensorflow
from ringar.job.process_sets import ProcessSet

if TYPE_CHECKING:
    import tensorflow as tf

    from ringar.collectives.tensors import Backward

Splits: TypeAlias = "Array | Sequence[int] | None"
"""The number of rows for each rank; None: even shares."""

INVALID_SPLITS = [-1]
"""Replaces an empty list of splits, which the engine would read as even shares."""


@overload
def alltoall(
    tensor: ArrayT,
    splits: None = None,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> ArrayT: ...


@overload
def alltoall(
    tensor: ArrayT,
    splits: Array | Sequence[int],
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> tuple[ArrayT, ArrayT]: ...


def alltoall(
    tensor: ArrayT,
    splits: Splits = None,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """Send rows of a tensor to all ranks and receive rows from all ranks.

    Args:
        tensor: a TensorFlow tensor or a NumPy array of at least one dimension; any dtype but
            strings. All dimensions but the first are the same on all ranks.
        splits: how many rows, in order, go to each rank; they add up to the first dimension.
            Default: even shares, with one row more for the first ranks where a rest is left.
            Compiled functions take no splits, and need a first dimension that is a multiple of
            the number of ranks.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Returns:
        The rows received, in the order of the ranks. With `splits`, a pair: these rows, and the
        number of rows (int64) from each rank.

    The gradient is that of the sum of all ranks' losses: the upstream gradient of each row returns
    to the rank that sent the row.

    Raises:
        RingarError: as `ringar.allreduce`.
        MismatchError: also for splits that do not add up, on all ranks.

    Examples:
        What rank 0 of two sees:

        >>> rows = np.arange(4) + 10 * ringar.rank()
        >>> ringar.alltoall(rows)
        array([ 0,  1, 10, 11])
        >>> ringar.alltoall(rows, splits=[1, 3])
        (array([ 0, 10]), array([1, 1]))
    """
    call, ranks = calls.begin("alltoall", process_set, name)
    (value,) = values_of([tensor], "alltoall")
    exchange: Any = _exchange_array if isinstance(value, np.ndarray) else _exchange_tensor
    received, counts = exchange(call, value, splits, ranks.size())
    return received if splits is None else (received, counts)


def _exchange_array(
    call: Call, array: np.ndarray, splits: Splits, ranks: int
) -> tuple[np.ndarray, np.ndarray]:
    spec, rows = call.spec(array.dtype.name), rows_of(call, splits)
    results, counts = native.run(spec, [array], None, splits=rows, received_count=ranks)
    return results[0], counts


def _exchange_tensor(
    call: Call, tensor: tf.Tensor, splits: Splits, ranks: int
) -> tuple[tf.Tensor, tf.Tensor]:
    import tensorflow as tf

    from ringar.collectives import compiled
    from ringar.collectives.tensors import run_tensors

    if compiled.is_compiling():
        _refuse_uneven(call, tensor, splits, ranks)
        (received,) = run_tensors(call, [tensor])
        return received, tf.fill([ranks], tf.constant(tensor.shape[0] // ranks, tf.int64))
    rows = NO_SPLITS
    if splits is not None:
        rows = tf.cast(_checked(call, splits), tf.int64)
        if rows.shape.num_elements() == 0:
            rows = tf.constant(INVALID_SPLITS, tf.int64)
    received, counts = run_tensors(call, [tensor], rows)
    counts.set_shape([ranks])
    return received, counts


def rows_of(call: Call, splits: Splits) -> list[int] | None:
    """Return splits as a list for the engine; None stands for even shares."""
    if splits is None:
        return None
    return [int(rows) for rows in _checked(call, splits).ravel()] or INVALID_SPLITS


def _checked(call: Call, splits: Array | Sequence[int]) -> Any:
    """Return splits as an array or tensor of whole numbers."""
    checked: Any = splits if tensorflow.is_tensor(splits) else np.asarray(splits)
    name = checked.dtype.name  # as NumPy and TensorFlow have it
    if not name.startswith(("int", "uint")) and 0 not in checked.shape:
        raise ValueError(call.refusal("splits of an integer dtype", name, "Cast them first."))
    return checked


def _refuse_uneven(call: Call, tensor: tf.Tensor, splits: Splits, ranks: int) -> None:
    from ringar.collectives import compiled

    rows = compiled.static_shape(tensor, call)[:1]
    if splits is not None or not rows or rows[0] % ranks:
        raise errors.UnsupportedError(
            call.refusal(
                "for an alltoall in a compiled function no splits and a first dimension that the "
                f"number of ranks ({ranks}) divides",
                f"shape {tensor.shape} and splits {splits}",
                "Leave it out of jit_compile.",
            )
        )


def _gradient(back: Backward) -> list[tf.Tensor]:
    """Send the gradient of each row back to the rank that sent the row."""
    return back.run("alltoall", back.upstream, *back.outputs[1:])


define(
    "alltoall",
    Collective(
        _gradient,
        # The op has one more output: the number of rows from each rank.
        arguments=lambda tensors, splits: [tensors[0], splits],
        rows=lambda call, rows: rows,
        ranks_may_differ=True,
        grouped=False,
    ),
)
