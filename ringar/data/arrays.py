"""Rows of arrays: NumPy arrays, tensors, pandas' tables, and structures of these."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

KINDS = (
    "a NumPy array, a tensor or a pandas DataFrame or Series with rows, or a tuple, list or dict "
    "of such arrays"
)


def is_instance(value: object, module: str, *names: str) -> bool:
    """Return whether `value` is of a class of `module`, without importing the module.

    Args:
        value: any object.
        module: the name of a top-level module. Who has made `value` has imported it.
        names: names of classes, with dots.
    """
    found: Any = sys.modules.get(module)
    if found is None:
        return False
    return isinstance(value, tuple(operator.attrgetter(name)(found) for name in names))


def rows_of(data: Any) -> int:
    """Return the number of rows of all arrays in `data`.

    Raises:
        TypeError: if `data` has something else than arrays with rows.
        ValueError: if arrays differ in their number of rows.
    """
    counts: list[int] = []
    select(data, lambda array: counts.append(int(array.shape[0])))
    if not counts:
        raise TypeError(f"`data` must be {KINDS}. Received: no array")
    if len(set(counts)) != 1:
        raise ValueError(f"All arrays must have the same number of rows. Received: {counts}")
    return counts[0]


def take(data: Any, rows: slice | np.ndarray) -> Any:
    """Return `data` with some rows of each array."""
    return select(data, lambda array: _take(array, rows))


def select(data: Any, function: Callable[[Any], Any]) -> Any:
    """Apply `function` to each array of a structure; None, an argument left out, stays None."""
    if isinstance(data, dict):
        return {key: select(value, function) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(select(value, function) for value in data))
    if isinstance(data, tuple | list):
        return type(data)(select(value, function) for value in data)
    if data is None:
        return None
    if not _has_rows(data):
        raise TypeError(
            f"`data` must be a tf.data.Dataset, a keras.utils.PyDataset, {KINDS}. "
            f"Received: {type(data).__name__}"
        )
    return function(data)


def _has_rows(data: Any) -> bool:
    is_array = (
        isinstance(data, np.ndarray)
        or is_instance(data, "tensorflow", "Tensor", "RaggedTensor", "Variable")
        or is_instance(data, "pandas", "DataFrame", "Series")
    )
    return is_array and len(data.shape) > 0


def _take(array: Any, rows: slice | np.ndarray) -> Any:
    if is_instance(array, "pandas", "DataFrame", "Series"):
        return array.iloc[rows]
    if isinstance(array, np.ndarray) or (
        isinstance(rows, slice) and not is_instance(array, "tensorflow", "RaggedTensor")
    ):
        return array[rows]
    import tensorflow as tf

    indices = np.arange(array.shape[0])[rows] if isinstance(rows, slice) else rows
    return tf.gather(array, indices)
