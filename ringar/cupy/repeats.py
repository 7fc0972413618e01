"""Calls on one array that a program repeats, such as those of each step.

As `ringar.collectives.repeats` for arrays of the host: the first call with some arguments checks
and describes them, and leaves a function for those that follow.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from ringar.collectives import collective as collectives
from ringar.collectives import repeats
from ringar.collectives.call import Call
from ringar.errors import RingarError
from ringar.job import place, tensorflow
from ringar.job.native_repeat import RepeatOnGpu

Repeat = Callable[[Any, Any], Any]
"""`(array, out) -> result`."""


def find(array: Any, out: Any, arguments: tuple[Any, ...]) -> Repeat | None:
    """Return the function that runs a collective; None if it is not remembered.

    Args:
        array: the user's array.
        out: the user's array for the result, of the shape of `array`; None: a new one.
        arguments: the name of the function and all its other arguments.
    """
    cupy = sys.modules.get("cupy")
    if cupy is None or type(array) is not cupy.ndarray or not _can_be_result(out, array):
        return None
    try:
        repeat = place.repeats.get(_key(array, arguments))
    except TypeError:  # an argument without a hash
        return None
    if repeat is None or not tensorflow.is_eager():
        return None
    return repeat if cupy.cuda.Device().id == array.data.device_id else None


def remember(cupy: Any, array: Any, dtype: str, arguments: tuple[Any, ...], call: Call) -> None:
    """Remember how a call ran, for `find`.

    Args:
        cupy: the module `cupy`.
        array: the user's array.
        dtype: its dtype, by the name in the spec.
        arguments: as of `find`.
        call: the call of these arguments.
    """
    if type(array) is cupy.ndarray and array.flags.c_contiguous:
        repeats.keep(_key(array, arguments), lambda: _repeat(cupy, call, dtype, array))


def _can_be_result(out: Any, array: Any) -> bool:
    if out is None or out is array:
        return True
    return (
        type(out) is type(array)
        and out.dtype == array.dtype
        and out.shape == array.shape
        and out.flags.c_contiguous
        and out.data.device_id == array.data.device_id
        and abs(out.data.ptr - array.data.ptr) >= array.nbytes
    )


def _key(array: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.flags.c_contiguous, array.data.device_id, arguments


def _repeat(cupy: Any, call: Call, name: str, like: Any) -> Repeat:
    shapes = collectives.output_shapes(call, [like.shape])
    assert shapes is not None, call.collective
    run, shape = RepeatOnGpu(call.spec(name), like.shape), tuple(shapes[0])
    number, dtype = like.data.device_id, like.dtype

    def repeat(array: Any, out: Any) -> Any:
        stream = cupy.cuda.get_current_stream().ptr
        try:
            result = cupy.empty(shape, dtype) if out is None else out
        except MemoryError:
            with contextlib.suppress(RingarError):  # refused on all ranks
                run(array.data.ptr, None, number, stream)
            raise
        run(array.data.ptr, result.data.ptr, number, stream)
        return result

    return repeat
