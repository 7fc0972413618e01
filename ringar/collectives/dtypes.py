"""The dtypes and arrays that collectives take; tf_ops/engine/types.cc has the same dtypes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import tensorflow as tf

Array: TypeAlias = "np.ndarray | np.generic | tf.Tensor | tf.Variable"
"""A NumPy array, or a TensorFlow tensor or variable."""

Arrays: TypeAlias = "Array | tf.RaggedTensor | Sequence[Arrays] | Mapping[str, Arrays]"
"""An array, or a tuple, list or dict of arrays, or of such structures."""

Examples: TypeAlias = "Arrays | Sequence[Arrays | None]"
"""A batch as Keras passes it: inputs, targets and sample weights, None if there are none."""

ArrayT = TypeVar("ArrayT", bound="np.ndarray | np.generic | tf.Tensor | tf.Variable")
"""The kind of array that a collective takes and returns; a tensor for a variable."""

GradientT = TypeVar(
    "GradientT", bound="np.ndarray | np.generic | tf.Tensor | tf.Variable | tf.IndexedSlices"
)
"""The same for a reduction, which takes sparse gradients, too."""

ITEM_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
    "bool": 1,
    "int16": 2,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""The bytes of one element, by the name of its dtype."""


@functools.cache
def name_of(dtype: np.dtype) -> str:
    """Return the name of a dtype of NumPy, which takes it several microseconds to compose."""
    return dtype.name
