"""The arrays that users pass to `ringar.cupy`, and their GPU with its current stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ringar.collectives.call import Call
from ringar.collectives.dtypes import name_of

if TYPE_CHECKING:
    import cupy


_ON_CUDA = 2
"""The type of a CUDA GPU in DLPack."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Hold a GPU and one of its streams; `with place:` makes both current.

    Attributes:
        cupy: the module `cupy`.
        device: a `cupy.cuda.Device`.
        stream: a `cupy.cuda.Stream`.
        is_current: whether both are current, as for most calls: then `with` has nothing to do.
    """

    cupy: ModuleType
    device: Any
    stream: Any
    is_current: bool

    def __enter__(self) -> None:
        if not self.is_current:
            self.device.__enter__()
            self.stream.__enter__()

    def __exit__(self, *error: Any) -> None:
        if not self.is_current:
            self.stream.__exit__(*error)
            self.device.__exit__(*error)

    def on_another_thread(self) -> Place:
        """Return the same place for a thread on which something else is current."""
        return dataclasses.replace(self, is_current=False)


def arrays_of(cupy: Any, call: Call, values: Iterable[Any]) -> list[Any]:
    """Return a user's arrays as arrays of CuPy in the same memory.

    Raises:
        TypeError: an argument is not an array on a GPU.
    """
    return [
        value if isinstance(value, cupy.ndarray) else _array_of(cupy, call, value)
        for value in values
    ]


def _array_of(cupy: Any, call: Call, value: Any) -> Any:
    on_host = isinstance(value, (np.ndarray, np.generic))
    # DLPack first: it waits for the producer's stream on the GPU, the CUDA array interface on the
    # host.
    if not on_host and hasattr(value, "__dlpack_device__") and hasattr(value, "__dlpack__"):
        on_host = int(value.__dlpack_device__()[0]) != _ON_CUDA
        if not on_host and not _is_of_tensorflow(value):
            return _exported(cupy, call, value)
    if hasattr(value, "__cuda_array_interface__"):
        return cupy.asarray(value)
    raise TypeError(
        call.refusal(
            "a cupy.ndarray, or an array on a GPU with __dlpack__ or __cuda_array_interface__",
            f"a {_kind_of(value)}{' in host memory' if on_host else ''}",
            f"ringar.{call.collective} takes NumPy arrays and TensorFlow tensors.",
        )
    )


def _is_of_tensorflow(value: Any) -> bool:
    """Return whether it is a tensor, which TensorFlow exports for no stream but its own."""
    return type(value).__module__.startswith("tensorflow.")


def _exported(cupy: Any, call: Call, value: Any) -> Any:
    try:
        return cupy.from_dlpack(value)
    except Exception as error:  # of any library
        raise TypeError(
            call.refusal(
                "an array that its library hands out by DLPack",
                f"a {_kind_of(value)}, for which it raises {type(error).__name__}: {error}",
                "Pass a cupy.ndarray.",
            )
        ) from error


def _kind_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def place_of(cupy: Any, call: Call, arrays: Sequence[Any]) -> Place:
    """Return the one GPU of all arrays, and the stream that is current there.

    Raises:
        ValueError: the arrays are on several GPUs.
    """
    numbers = list({array.data.device_id: None for array in arrays})
    if len(numbers) > 1:
        raise ValueError(
            call.refusal(
                "arrays on one GPU",
                f"arrays on GPUs {', '.join(map(str, numbers))}",
                "Copy them to one, or call once for each.",
            )
        )
    device = cupy.cuda.Device()
    if device.id == numbers[0]:
        return Place(cupy, device, cupy.cuda.get_current_stream(), is_current=True)
    device = cupy.cuda.Device(numbers[0])
    with device:
        return Place(cupy, device, cupy.cuda.get_current_stream(), is_current=False)


def contiguous(place: Place, arrays: Iterable[Any]) -> list[Any]:
    """Return the arrays, copied where they are not C-contiguous; `place` must be current."""
    return [a if a.flags.c_contiguous else place.cupy.ascontiguousarray(a) for a in arrays]


def dtypes_of(call: Call, arrays: Sequence[Any], dtype: str | None) -> list[str]:
    """Return the dtypes of the arrays, by their names in the spec.

    Raises:
        ValueError: `dtype` is neither None nor "bfloat16".
        TypeError: with "bfloat16", the elements of an array do not have two bytes.
    """
    if dtype is None:
        return [name_of(array.dtype) for array in arrays]
    if dtype != "bfloat16":
        raise ValueError(f'`dtype` must be None or "bfloat16". Received: dtype={dtype!r}')
    for array in arrays:
        if array.dtype.itemsize != 2:
            raise TypeError(
                call.refusal(
                    'arrays of elements of 2 bytes, for dtype="bfloat16"',
                    f"one of {array.dtype.name}",
                    "Leave dtype out, or cast the array.",
                )
            )
    return ["bfloat16"] * len(arrays)


def outputs_of(
    place: Place, call: Call, out: Iterable[Any], arrays: Sequence[Any], shapes: Sequence[Any]
) -> list[Any]:
    """Return a user's arrays for results as arrays of CuPy in the same memory.

    Args:
        place: where the collective runs.
        call: the collective.
        out: the user's arrays.
        arrays: the collective's inputs, contiguous.
        shapes: the shapes of its results.

    Raises:
        TypeError: an output is not an array on a GPU, or has another dtype.
        ValueError: an output has another shape, is not contiguous, read-only, on another GPU, or
            overlaps another array of the call.
    """
    values = list(out)
    if len(values) != len(arrays):
        raise ValueError(
            call.refusal(f"{len(arrays)} arrays in `out`", len(values), "Pass one for each array.")
        )
    outputs = arrays_of(place.cupy, call, values)
    for value, output, array, shape in zip(values, outputs, arrays, shapes, strict=True):
        _check_output(place, call, output, array, tuple(shape))
        if not isinstance(value, place.cupy.ndarray) and _is_read_only(value):
            raise ValueError(
                call.refusal("in `out` an array that may be written", "one that may not", "Copy.")
            )
    _refuse_overlap(call, arrays, outputs)
    return outputs


def _check_output(
    place: Place, call: Call, output: cupy.ndarray, array: cupy.ndarray, shape: tuple[int, ...]
) -> None:
    if output.dtype != array.dtype:
        raise TypeError(
            call.refusal(
                f"in `out` an array of dtype {array.dtype.name}, as the input",
                output.dtype.name,
                "Results are not cast.",
            )
        )
    fault: tuple[object, object] | None = None
    if tuple(output.shape) != shape:
        fault = f"of shape {shape}", tuple(output.shape)
    elif not output.flags.c_contiguous:
        fault = "that is C-contiguous", f"one with strides {output.strides}"
    elif output.data.device_id != place.device.id:
        fault = f"on GPU {place.device.id}, as the input", f"one on GPU {output.data.device_id}"
    if fault is not None:
        expected, received = fault
        remedy = "cupy.empty makes one that can be used."
        raise ValueError(call.refusal(f"in `out` an array {expected}", received, remedy))


def _is_read_only(value: Any) -> bool:
    description = getattr(value, "__cuda_array_interface__", None)
    return description is not None and bool(description["data"][1])


def _refuse_overlap(call: Call, arrays: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise ValueError if an output overlaps another output or an input.

    An allreduce and a broadcast work in place: an output may be the input with its index.
    """
    in_place = call.collective in ("allreduce", "broadcast")
    ranges = [(output.data.ptr, output.nbytes, i, True) for i, output in enumerate(outputs)]
    for i, (array, output) in enumerate(zip(arrays, outputs, strict=True)):
        if not (in_place and array.data.ptr == output.data.ptr):
            ranges.append((array.data.ptr, array.nbytes, i, False))
    end, has_output = 0, False
    for begin, length, i, is_output in sorted(ranges):
        if length and begin < end and (has_output or is_output):
            raise ValueError(
                call.refusal(
                    "arrays in `out` that share no memory with each other or with inputs"
                    + (", but each with its own input as a whole" if in_place else ""),
                    f"array {i}, which shares some",
                    "Pass arrays of their own.",
                )
            )
        if length:
            has_output = is_output if begin >= end else has_output or is_output
            end = max(end, begin + length)
