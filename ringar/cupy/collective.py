"""Collectives on CuPy arrays, which are enqueued without waiting for the GPU.

The spec, one line of text, describes the collective, as on the host
(`ringar.collectives.collective`). The engine has a stream of its own on the GPU. It waits for the
caller's current stream, and the caller's stream waits for it. Work that is enqueued on the caller's
stream afterwards finds the results.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ringar.collectives import call as calls
from ringar.collectives import collective as collectives
from ringar.collectives.call import Call
from ringar.cupy import device
from ringar.cupy.arrays import Place, arrays_of, contiguous, dtypes_of, outputs_of, place_of
from ringar.errors import RingarError
from ringar.job import native, place
from ringar.job.process_sets import ProcessSet


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Hold the arrays that a collective works on.

    Attributes:
        place: the GPU and the stream.
        arrays: the arrays, contiguous.
        dtypes: their dtypes, by the names in the spec.
    """

    place: Place
    arrays: list[Any]
    dtypes: list[str]

    def of(self, indices: Sequence[int]) -> Inputs:
        """Return the inputs with these indices."""
        arrays, dtypes = ([all_[i] for i in indices] for all_ in (self.arrays, self.dtypes))
        return Inputs(self.place, arrays, dtypes)


def begin(
    function: str, collective: str, process_set: ProcessSet | None, name: str | None, **factors: Any
) -> tuple[ModuleType, Call, ProcessSet]:
    """Return CuPy, and a call as `ringar.collectives.call.begin` does.

    Raises:
        NotInitializedError: before `ringar.init`.
        ImportError: CuPy is not installed.
        UnsupportedError: CuPy finds no GPU.
    """
    full_name = f"ringar.cupy.{function}"
    call, ranks = calls.begin(collective, process_set, name, function=full_name, **factors)
    return device.load(function), call, ranks


def inputs_of(cupy: ModuleType, call: Call, values: Sequence[Any], dtype: str | None) -> Inputs:
    """Return a user's arrays, at least one, copied where they are not contiguous."""
    arrays = arrays_of(cupy, call, values)
    place = place_of(cupy, call, arrays)
    dtypes = dtypes_of(call, arrays, dtype)
    with place:
        return Inputs(place, contiguous(place, arrays), dtypes)


def checked_outputs(call: Call, inputs: Inputs, out: Sequence[Any] | None) -> list[Any] | None:
    """Return a user's arrays for the results, if any, after checking them."""
    if out is None:
        return None
    shapes = collectives.output_shapes(call, [array.shape for array in inputs.arrays])
    assert shapes is not None, f"{call.collective} with outputs"
    return outputs_of(inputs.place, call, out, inputs.arrays, shapes)


def run_group(
    call: Call,
    inputs: Inputs,
    outputs: Sequence[Any] | None = None,
    *,
    splits: Sequence[int] | None = None,
    received_count: int = 0,
) -> tuple[list[Any], np.ndarray]:
    """Enqueue a collective on arrays of one dtype.

    Returns:
        The results, and the row counts that were received.
    """
    place, arrays = inputs.place, inputs.arrays
    results: list[Any] = [None] * len(arrays)

    def allocate(index: int, rows: int) -> int:
        with place.on_another_thread():  # the engine may ask on one of its own
            results[index] = _empty(place, (rows, *arrays[index].shape[1:]), arrays[index])
        return int(results[index].data.ptr)

    def enqueue(addresses: list[int] | None) -> np.ndarray:
        return native.run_on_gpu(
            call.spec(inputs.dtypes[0]),
            [array.data.ptr for array in arrays],
            [array.shape for array in arrays],
            addresses,
            None if is_known else allocate,
            place.device.id,
            place.stream.ptr,
            splits=splits,
            received_count=received_count,
        )

    is_known = not collectives.COLLECTIVES[call.collective].ranks_may_differ
    with place:
        if outputs is not None:
            results = list(outputs)
        elif shapes := collectives.output_shapes(call, [array.shape for array in arrays]):
            pairs = zip(shapes, arrays, strict=True)
            try:
                results = [_empty(place, tuple(shape), array) for shape, array in pairs]
            except MemoryError:
                with contextlib.suppress(RingarError):  # refused on all ranks
                    enqueue(None)
                raise
        received = enqueue([result.data.ptr for result in results] if is_known else None)
    return results, received


def run(
    call: Call,
    inputs: Inputs,
    outputs: Sequence[Any] | None = None,
    run_one: Callable[..., tuple[list[Any], np.ndarray]] = run_group,
) -> list[Any]:
    """Enqueue a collective by `run_one`; results are in the order of the inputs.

    `run_one` gets the arrays of one dtype together, in the order in which dtypes first appear.
    """
    groups = calls.by_dtype(inputs.dtypes)
    if len(groups) == 1:
        return run_one(call, inputs, outputs)[0]
    results: list[Any] = [None] * len(inputs.arrays)
    for indices in groups:
        buffers = None if outputs is None else [outputs[i] for i in indices]
        for i, result in zip(indices, run_one(call, inputs.of(indices), buffers)[0], strict=True):
            results[i] = result
    return results


def _empty(place: Place, shape: tuple[int, ...], like: Any) -> Any:
    return place.cupy.empty(shape, like.dtype)


def synchronize() -> None:
    """Wait until all collectives that this rank has enqueued on its GPU have ended.

    Raises:
        NotInitializedError: before `ringar.init`.
        PeerLostError: a rank died or left while a collective was under way.
        DeadlineError: a rank did not come in time.
        DeviceError: CUDA or NCCL has reported an error on this rank.
    """
    place.require("ringar.cupy.synchronize()")
    native.synchronize_gpu()
