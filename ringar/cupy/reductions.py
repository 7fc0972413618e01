"""`ringar.cupy.allreduce` and `reducescatter`, and their grouped forms."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ringar.collectives import call as calls
from ringar.collectives.call import Call
from ringar.collectives.ops import Average, ReduceOp
from ringar.collectives.reductions import refuse_integer_average, with_op
from ringar.cupy import collective as collectives
from ringar.cupy import repeats
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

    The call waits until the other ranks call it, too, and returns when the reduction is enqueued on
    the GPU, in the order of CuPy's current stream of that GPU. It has no gradient.

    After a later failure, such as the death of a rank, the result is filled with bytes of 0xFF,
    which are NaN in all floating dtypes. `ringar.cupy.synchronize` and all later collectives of the
    process set then raise the error.

    Args:
        array: a `cupy.ndarray`, or another library's array on a GPU with `__dlpack__` or
            `__cuda_array_interface__`, of dtype float16, bfloat16, float32, float64, int8, uint8,
            int32 or int64 and one shape on all ranks. It is copied if it is not C-contiguous.
        op: Sum, Average, Min, Max or Product. Average needs a floating dtype.
        algorithm: the algorithm on several hosts, the same on all ranks. "hierarchical": NCCL
            inside a host, MPI between hosts. None or "auto": that of the environment variable
            RINGAR_ALGORITHM, by default NCCL across all ranks.
        prescale_factor: multiplies each rank's array before the reduction.
        postscale_factor: multiplies the result.
        dtype: "bfloat16": interpret elements of two bytes (uint16, for example) as bfloat16, for
            which CuPy may have no dtype. None: the array's dtype.
        out: the array for the result, of the same shape and dtype on the same GPU, C-contiguous.
            It may be `array` itself.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Returns:
        `out`, or a `cupy.ndarray` of the input's shape and dtype.

    Raises:
        TypeError: an argument is not an array on a GPU, or `out` has another dtype. On this rank.
        ValueError: another argument is invalid, or arrays are on several GPUs. On this rank.
        MismatchError: ranks disagree on collective, shape, dtype, op or name, or one rank works in
            host memory, uses another GPU than before, captures its stream in a CUDA graph, or
            cannot open its GPU or NCCL. On every rank.
        PeerLostError: a rank died or left.
        DeadlineError: a rank did not come in time.
        DeviceError: CUDA or NCCL has reported an error on this rank.
        cupy.cuda.memory.OutOfMemoryError: there is no memory for the result. The other ranks raise
            MismatchError, and all can go on.
        ImportError: CuPy is not installed.
        UnsupportedError: CuPy finds no GPU.
    """
    options = (op, algorithm, prescale_factor, postscale_factor, dtype, name, process_set)
    if repeat := repeats.find(array, out, ("ringar.cupy.allreduce", *options)):
        return repeat(array, out)
    outputs = None if out is None else [out]
    return _reduce("allreduce", "allreduce", [array], outputs, *options)[0]


def grouped_allreduce(
    arrays: Sequence[cupy.ndarray],
    op: ReduceOp = Average,
    *,
    algorithm: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    dtype: str | None = None,
    out: Sequence[cupy.ndarray] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[cupy.ndarray]:
    """Reduce many arrays on this rank's GPU at once.

    Arguments, results and errors are those of `ringar.cupy.allreduce`, with lists of arrays for
    `arrays` and `out`. Arrays may have different dtypes; each dtype is reduced separately.
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
        Rank r's share of the rows. Rows are split evenly and in order; the first ranks get the
        remainder.
    """
    options = (op, None, prescale_factor, postscale_factor, dtype, name, process_set)
    if out is None and (
        repeat := repeats.find(array, out, ("ringar.cupy.reducescatter", *options))
    ):
        return repeat(array, out)
    outputs = None if out is None else [out]
    return _reduce("reducescatter", "reducescatter", [array], outputs, *options)[0]


def grouped_reducescatter(
    arrays: Sequence[cupy.ndarray],
    op: ReduceOp = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    dtype: str | None = None,
    out: Sequence[cupy.ndarray] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[cupy.ndarray]:
    """Reduce-scatter many arrays at once; see `ringar.cupy.reducescatter`."""
    options = (op, None, prescale_factor, postscale_factor, dtype, name, process_set)
    return _reduce("grouped_reducescatter", "reducescatter", arrays, out, *options)


def _reduce(
    function: str,
    collective: str,
    arrays: Sequence[cupy.ndarray],
    out: Sequence[cupy.ndarray] | None,
    op: ReduceOp,
    algorithm: str | None,
    prescale_factor: float,
    postscale_factor: float,
    dtype: str | None,
    name: str | None,
    process_set: ProcessSet | None,
) -> list[cupy.ndarray]:
    chosen, values = calls.checked_algorithm(algorithm), list(arrays)
    if not values:
        return []
    factors = {"prescale": prescale_factor, "postscale": postscale_factor}
    cupy, call, ranks = collectives.begin(function, collective, process_set, name, **factors)
    call = with_op(call, op, ranks.size(), algorithm=chosen)
    inputs = collectives.inputs_of(cupy, call, values, dtype)
    for dtype_of_inputs in dict.fromkeys(inputs.dtypes):
        refuse_integer_average(call, dtype_of_inputs, op, ranks.size())
    outputs = collectives.checked_outputs(call, inputs, out)
    is_scaled = call.has_factors_nccl_lacks()
    run_one = _run_scaled if is_scaled else collectives.run_group
    results = collectives.run(call, inputs, outputs, run_one)
    if function == collective and not is_scaled:
        options = (op, algorithm, prescale_factor, postscale_factor, dtype, name, process_set)
        arguments = (f"ringar.cupy.{function}", *options)
        repeats.remember(cupy, values[0], inputs.dtypes[0], arguments, call)
    return results if out is None else list(out)


def _run_scaled(
    call: Call, inputs: Inputs, outputs: Sequence[cupy.ndarray] | None
) -> tuple[list[cupy.ndarray], np.ndarray]:
    """Run a collective with factors, which NCCL has for sums only."""
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
    """Return `array` times `factor`, in float32 if its dtype is narrower, as on the host."""
    if factor == 1.0:
        return array
    dtype = array.dtype if array.dtype.itemsize > 2 else np.dtype("float32")
    return (array.astype(dtype, copy=False) * dtype.type(factor)).astype(array.dtype, copy=False)
