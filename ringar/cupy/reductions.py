"""`ringar.cupy.allreduce` and `reducescatter`, and their grouped forms."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ringar.collectives import call as calls
from ringar.collectives.call import Call
from ringar.collectives.ops import Average, ReduceOp
from ringar.collectives.reductions import refuse_integer_average, with_op
from ringar.cupy import collective as collectives
from ringar.cupy.collective import Inputs
from ringar.job.process_sets import ProcessSet

if TYPE_CHECKING:
    import cupy


_FLOATING = ("float16", "bfloat16", "float32", "float64")


def allreduce(
    array: cupy.ndarray,
    op: ReduceOp = Average,
    *,
    algorithm: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    dtype: str | None = None,
    out: cupy.ndarray | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> cupy.ndarray:
    """Reduce an array on this rank's GPU over all ranks; every rank gets the result.

    It waits for the other ranks to call it, too, and returns when the reduction is enqueued on the
    GPU: after what is enqueued on CuPy's current stream of that GPU by now, and before what will
    be. It has no gradient.

    What fails afterwards (a rank died, say) fills the result with bytes of 0xFF, which are NaN in
    all floating dtypes. The error is raised by `ringar.cupy.synchronize` and by all later
    collectives of the process set.

    Args:
        array: a `cupy.ndarray`, or another library's array on a GPU, one that has `__dlpack__` or
            `__cuda_array_interface__`. float16, bfloat16, float32, float64, int8, uint8, int32 or
            int64, of one shape on all ranks. If it is not C-contiguous, it is copied.
        op: Sum, Average, Min, Max or Product. Average needs a floating dtype.
        algorithm: how ranks on several hosts go about it, the same on all ranks. "hierarchical": by
            NCCL inside a host, and through MPI between hosts. None or "auto": what the environment
            variable RINGAR_ALGORITHM says, or else NCCL across all ranks, which chooses by itself.
        prescale_factor: multiplies each rank's array before the reduction.
        postscale_factor: multiplies the result.
        dtype: "bfloat16": elements of two bytes, of whatever dtype they are (uint16, say), are
            bfloat16, for which CuPy may have no dtype. None: they are of the array's dtype.
        out: what the result is written to: an array of the same shape and dtype on the same GPU,
            C-contiguous. It may be `array` itself.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Returns:
        `out`, or a `cupy.ndarray` of the shape and dtype given.

    Raises:
        TypeError: what is no array on a GPU, or an `out` of another dtype; on this rank.
        ValueError: another argument that is none of those, or arrays on several GPUs; on this rank.
        MismatchError: ranks disagree on collective, shape, dtype, op or name; one of them works in
            host memory, on another GPU than before, or captures its stream in a CUDA graph, or
            cannot open its GPU or NCCL. On every rank.
        PeerLostError: a rank died or left.
        DeadlineError: a rank did not come in time.
        DeviceError: CUDA or NCCL has reported an error on this rank.
        ImportError: CuPy is not installed.
        UnsupportedError: CuPy finds no GPU.
    """
    options = (op, algorithm, prescale_factor, postscale_factor, dtype, name, process_set)
    outputs = None if out is None else [out]
    return _reduce("allreduce", "allreduce", [array], outputs, *options)[0]


def grouped_allreduce(
    arrays: Sequence[Any],
    op: ReduceOp = Average,
    *,
    algorithm: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    dtype: str | None = None,
    out: Sequence[Any] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[Any]:
    """Reduce many arrays on this rank's GPU at once.

    Arguments, results and errors are those of `ringar.cupy.allreduce`, with lists of arrays
    for `arrays` and `out`. Arrays of different dtypes are allowed and travel one dtype after the
    other.
    """
    options = (op, algorithm, prescale_factor, postscale_factor, dtype, name, process_set)
    return _reduce("grouped_allreduce", "allreduce", arrays, out, *options)


def reducescatter(
    array: cupy.ndarray,
    op: ReduceOp = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    dtype: str | None = None,
    out: cupy.ndarray | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> cupy.ndarray:
    """Reduce an array on this rank's GPU over all ranks and leave each rank a share of the rows.

    Arguments and errors are those of `ringar.cupy.allreduce`; the array has at least one
    dimension, and `out` has the shape of the share and memory of its own.

    Returns:
        Rank r's share: the first dimension is dealt out evenly and in order; where it cannot be
        divided, the first ranks get one row more.
    """
    options = (op, None, prescale_factor, postscale_factor, dtype, name, process_set)
    outputs = None if out is None else [out]
    return _reduce("reducescatter", "reducescatter", [array], outputs, *options)[0]


def grouped_reducescatter(
    arrays: Sequence[Any],
    op: ReduceOp = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    dtype: str | None = None,
    out: Sequence[Any] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[Any]:
    """Reduce-scatter many arrays at once; see `ringar.cupy.reducescatter`."""
    options = (op, None, prescale_factor, postscale_factor, dtype, name, process_set)
    return _reduce("grouped_reducescatter", "reducescatter", arrays, out, *options)


def _reduce(
    function: str,
    collective: str,
    arrays: Sequence[Any],
    out: Sequence[Any] | None,
    op: ReduceOp,
    algorithm: str | None,
    prescale_factor: float,
    postscale_factor: float,
    dtype: str | None,
    name: str | None,
    process_set: ProcessSet | None,
) -> list[Any]:
    chosen, given = calls.checked_algorithm(algorithm), list(arrays)
    if not given:
        return []
    factors = {"prescale": prescale_factor, "postscale": postscale_factor}
    cupy, call, ranks = collectives.begin(function, collective, process_set, name, **factors)
    call = dataclasses.replace(with_op(call, op, ranks.size()), algorithm=chosen)
    inputs = collectives.inputs_of(cupy, call, given, dtype)
    for one in dict.fromkeys(inputs.dtypes):
        refuse_integer_average(call, one, op)
    outputs = collectives.checked_outputs(call, inputs, out)
    run_one = _run_scaled if call.has_factors_nccl_lacks() else collectives.run_group
    results = collectives.run(call, inputs, outputs, run_one)
    return results if out is None else list(out)


def _run_scaled(
    call: Call, inputs: Inputs, outputs: Sequence[Any] | None
) -> tuple[list[Any], np.ndarray]:
    """Apply the factors here: NCCL has them for sums only."""
    if inputs.dtypes[0] not in _FLOATING:
        return collectives.run_group(call, inputs, outputs)  # refused on all ranks
    if inputs.arrays[0].dtype.name != inputs.dtypes[0]:
        raise ValueError(
            call.refusal(
                f'factors of 1.0 for op={call.op}, where dtype="{inputs.dtypes[0]}"',
                f"{call.prescale} and {call.postscale}",
                "Multiply before and after.",
            )
        )
    with inputs.place:
        scaled = [_times(array, call.prescale) for array in inputs.arrays]
    plain = dataclasses.replace(call, prescale=1.0, postscale=1.0)
    group = dataclasses.replace(inputs, arrays=scaled)
    results, counts = collectives.run_group(plain, group, outputs)
    if call.postscale != 1.0:
        with inputs.place:
            for result in results:
                result[...] = _times(result, call.postscale)
    return results, counts


def _times(array: cupy.ndarray, factor: float) -> cupy.ndarray:
    """Multiply in float32 where the array is narrower, as the engine does in host memory."""
    if factor == 1.0:
        return array
    wide = array.dtype if array.dtype.itemsize > 2 else np.dtype("float32")
    return (array.astype(wide, copy=False) * wide.type(factor)).astype(array.dtype, copy=False)
