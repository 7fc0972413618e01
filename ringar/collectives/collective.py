"""The description of a collective, and its way to the engine for NumPy arrays.

NumPy arrays go through the library's C interface, which waits for the result. The two ways of
TensorFlow's tensors are in `ringar.collectives.tensors`, and `ringar.collectives.ways` chooses. All
three ways carry the same line of text, the spec.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ringar.collectives.call import Call
from ringar.collectives.dtypes import name_of
from ringar.job import native

if TYPE_CHECKING:
    import tensorflow as tf

    from ringar.collectives.tensors import Backward

Splits: TypeAlias = "np.ndarray | tf.Tensor"
"""The number of rows per rank, int64; none for even shares."""

Arguments: TypeAlias = "Callable[[Sequence[tf.Tensor], Splits], Sequence[Any]]"
"""`(tensors, rows per rank) -> inputs` of the TensorFlow op."""

NO_SPLITS = np.zeros(0, np.int64)
"""The rows per rank of a call without splits: even shares."""


@dataclasses.dataclass(frozen=True)
class Collective:
    """Describe one collective; its op works on tensors of one dtype.

    Attributes:
        gradient: computes the gradients of the inputs from those of the outputs.
        arguments: returns the inputs of the TensorFlow op. Its first outputs are the results.
        rows: returns this rank's number of result rows if all ranks pass `rows`; None: the same.
        ranks_may_differ: whether ranks may pass different numbers of rows. Then only the exchange
            tells the shape of the results. Compiled code must know it before, and needs equal
            numbers.
        grouped: whether the op takes any number of tensors, or one.
    """

    gradient: Callable[[Backward], Sequence[tf.Tensor]]
    arguments: Arguments = lambda tensors, splits: [tensors]
    rows: Callable[[Call, int], int] | None = None
    ranks_may_differ: bool = False
    grouped: bool = True

    def output_shape(self, call: Call, shape: Sequence[int]) -> list[int]:
        """Return the shape of a result if all ranks pass an array of `shape`."""
        if self.rows is None:
            return list(shape)
        # A scalar must reach the engine, which refuses it on all ranks.
        return [self.rows(call, shape[0] if len(shape) else 1), *shape[1:]]


COLLECTIVES: dict[str, Collective] = {}
"""All collectives, by their names."""


def output_shapes(call: Call, shapes: Iterable[Sequence[int]]) -> list[list[int]] | None:
    """Return the results' shapes for inputs of `shapes`; None if only the exchange tells them."""
    collective = COLLECTIVES[call.collective]
    if collective.ranks_may_differ:
        return None
    return [collective.output_shape(call, shape) for shape in shapes]


def run_arrays(call: Call, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Run a collective on NumPy arrays of one dtype and wait for its end."""
    dtype, shapes = arrays[0].dtype, output_shapes(call, [array.shape for array in arrays])
    empty = native.empty if call.collective == "allreduce" else np.empty
    outputs = None if shapes is None else [empty(shape, dtype) for shape in shapes]
    return native.run(call.spec(name_of(dtype)), arrays, outputs)[0]
