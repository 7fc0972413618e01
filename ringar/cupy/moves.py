"""`ringar.cupy.allgather`, `broadcast` and `alltoall`, which move data without arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ringar.collectives.alltoall import rows_of
from ringar.collectives.broadcast import root_in_set
from ringar.cupy import collective as collectives
from ringar.cupy import repeats
from ringar.job.process_sets import ProcessSet

if TYPE_CHECKING:
    import cupy
    import numpy as np


def allgather(
    array: cupy.ndarray,
    *,
    dtype: str | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> cupy.ndarray:
    """Concatenate the arrays of all ranks' GPUs along the first dimension.

    Args:
        array: as for `ringar.cupy.allreduce`, of at least one dimension and any numeric dtype or
            bool. Ranks may differ in the first dimension only.
        dtype: as for `ringar.cupy.allreduce`.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Returns:
        A `cupy.ndarray` whose first dimension is the sum over the ranks. It is complete, and errors
        are raised, as for `ringar.cupy.allreduce`.

    Raises:
        RingarError: as `ringar.cupy.allreduce`.
        cupy.cuda.memory.OutOfMemoryError: there is no memory for the result. The other ranks raise
            an error, too, and the job cannot go on.
    """
    return _allgather("allgather", [array], dtype, name, process_set)[0]


def grouped_allgather(
    arrays: Sequence[cupy.ndarray],
    *,
    dtype: str | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[cupy.ndarray]:
    """All-gather many arrays at once; see `ringar.cupy.allgather`."""
    return _allgather("grouped_allgather", list(arrays), dtype, name, process_set)


def _allgather(
    function: str,
    arrays: list[cupy.ndarray],
    dtype: str | None,
    name: str | None,
    process_set: ProcessSet | None,
) -> list[cupy.ndarray]:
    if not arrays:
        return []
    cupy, call, _ = collectives.begin(function, "allgather", process_set, name)
    return collectives.run(call, collectives.inputs_of(cupy, call, arrays, dtype))


def broadcast(
    array: cupy.ndarray,
    root_rank: int = 0,
    *,
    dtype: str | None = None,
    out: cupy.ndarray | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> cupy.ndarray:
    """Send the array on the root rank's GPU to the GPUs of all ranks.

    Args:
        array: as for `ringar.cupy.allreduce`, of any numeric dtype or bool, with one shape and
            dtype on all ranks.
        root_rank: a rank of the job, also with a process set.
        dtype: as for `ringar.cupy.allreduce`.
        out: as for `ringar.cupy.allreduce`; may be `array` itself.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Returns:
        `out`, or a `cupy.ndarray` with the root's values. They are complete, and errors are raised,
        as for `ringar.cupy.allreduce`.

    Raises:
        RingarError: as `ringar.cupy.allreduce`.
        MismatchError: also for a root out of range.
        ValueError: the root is not in the process set.
    """
    arguments = ("ringar.cupy.broadcast", root_rank, dtype, name, process_set)
    if repeat := repeats.find(array, out, arguments):
        return repeat(array, out)
    outputs = None if out is None else [out]
    return _broadcast("broadcast", [array], root_rank, dtype, outputs, name, process_set)[0]


def grouped_broadcast(
    arrays: Sequence[cupy.ndarray],
    root_rank: int = 0,
    *,
    dtype: str | None = None,
    out: Sequence[cupy.ndarray] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[cupy.ndarray]:
    """Broadcast many arrays at once; see `ringar.cupy.broadcast`."""
    options = (root_rank, dtype, out, name, process_set)
    return _broadcast("grouped_broadcast", list(arrays), *options)


def _broadcast(
    function: str,
    arrays: list[cupy.ndarray],
    root_rank: int,
    dtype: str | None,
    out: Sequence[cupy.ndarray] | None,
    name: str | None,
    process_set: ProcessSet | None,
) -> list[cupy.ndarray]:
    if not arrays:
        return []
    cupy, call, ranks = collectives.begin(function, "broadcast", process_set, name)
    call = dataclasses.replace(call, root=root_in_set(call, root_rank, ranks))
    inputs = collectives.inputs_of(cupy, call, arrays, dtype)
    outputs = collectives.checked_outputs(call, inputs, out)
    results = collectives.run(call, inputs, outputs)
    if function == "broadcast":
        arguments = ("ringar.cupy.broadcast", root_rank, dtype, name, process_set)
        repeats.remember(cupy, arrays[0], inputs.dtypes[0], arguments, call)
    return results if out is None else list(out)


def alltoall(
    array: cupy.ndarray,
    splits: Sequence[int] | np.ndarray | None = None,
    *,
    dtype: str | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> cupy.ndarray:
    """Send rows of an array on this rank's GPU to all ranks and receive rows from all ranks.

    Args:
        array: as for `ringar.cupy.allreduce`, of at least one dimension and any numeric dtype or
            bool. All dimensions but the first are the same on all ranks.
        splits: the number of rows for each rank, in order, in host memory; their sum is the first
            dimension. By default rows are split evenly, and the first ranks get the remainder.
        dtype: as for `ringar.cupy.allreduce`.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Returns:
        The received rows, in the order of the ranks, a `cupy.ndarray`. With `splits`, a pair: the
        rows, and the number of rows from each rank, a NumPy array (int64) that is complete at once.
        Rows are complete, and errors are raised, as for `ringar.cupy.allreduce`.

    Raises:
        RingarError: as `ringar.cupy.allgather`.
        MismatchError: also for splits that do not add up, on all ranks.
    """
    cupy, call, ranks = collectives.begin("alltoall", "alltoall", process_set, name)
    inputs = collectives.inputs_of(cupy, call, [array], dtype)
    results, counts = collectives.run_group(
        call, inputs, splits=rows_of(call, splits), received_count=ranks.size()
    )
    return results[0] if splits is None else (results[0], counts)
