"""A collective that runs repeatedly, each time on another array of one shape and dtype."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence

import numpy as np

from ringar.job import native
from ringar.job.native_config import int64s

ADDRESS = object.__basicsize__
"""Where the object of a NumPy array has the address of its data: behind Python's own fields. That
is a part of NumPy's binary interface (`PyArrayObject_fields`), on which extension modules rely.
`array.ctypes.data` alone takes as long as a small collective."""


@native.ALLOCATE
def _allocate(context: int, _index: int, rows: int) -> int:
    """Replace the output of a call by one with another number of rows."""
    outputs = ctypes.cast(context, ctypes.py_object).value
    try:
        outputs[0] = np.empty((rows, *outputs[0].shape[1:]), outputs[0].dtype)
    except MemoryError:
        return 0
    return native.address_of(outputs[0].ctypes.data)


class Repeat:
    """Run a collective, each time on another array; several threads may do so at once.

    Args:
        spec: the line of text that tf_ops/engine/spec.h describes.
        dtype: the dtype of the arrays.
        shape: their shape.
        output_shape: the shape of results, or the likely one if only the exchange tells their rows.
        ranks_may_differ: whether only the exchange tells the rows of results.

    Attributes:
        empty: returns an array for a result.
        run: runs the collective, and returns a code for `native.check`. Its arguments are the
            addresses of the arrays' addresses, and of the list that holds the result.
    """

    def __init__(
        self,
        spec: str,
        dtype: np.dtype,
        shape: Sequence[int],
        output_shape: Sequence[int],
        *,
        ranks_may_differ: bool = False,
    ) -> None:
        self._call = native.PreparedCall(spec, [0], [shape])
        rows = output_shape[0] if ranks_may_differ else -1
        self.run = functools.partial(
            native.library().ringar_run_again, self._call.reference, rows, _allocate
        )
        is_small = math.prod(output_shape) * dtype.itemsize < native.LEAST_POOLED
        empty = np.empty if is_small or ranks_may_differ else native.empty
        self.empty = functools.partial(empty, tuple(output_shape), dtype)

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """Run the collective, wait for its end, and return its result; raise as `allreduce`."""
        outputs = [self.empty()]
        code = self.run(id(array) + ADDRESS, id(outputs[0]) + ADDRESS, id(outputs))
        if code:
            native.check(code)
        return outputs[0]


class RepeatOnGpu:
    """Enqueue a collective, each time on another array of a GPU; several threads may do so at once.

    Args:
        spec: the line of text that tf_ops/engine/spec.h describes.
        shape: the shape of the arrays.
    """

    def __init__(self, spec: str, shape: Sequence[int]) -> None:
        self._run = functools.partial(native.library().ringar_run_on_gpu, spec.encode())
        self._dims, self._rank = int64s(shape), len(shape)

    def __call__(self, address: int, output: int | None, device: int, stream: int) -> None:
        """Enqueue it in the order of a stream; raise as `ringar.cupy.allreduce`.

        Args:
            address: of the array.
            output: the address for the result; None: there is no memory for it, which is an
                error on all ranks.
            device: the number of the GPU.
            stream: the address of the CUDA stream.
        """
        array = native.Description(
            native.address_of(address),
            None if output is None else native.address_of(output),
            self._rank,
            ctypes.addressof(self._dims),
        )
        code = self._run(
            ctypes.byref(array), 1, None, 0, None, native.NO_CALLBACK, None, device, stream
        )
        if code:
            native.check(code)
