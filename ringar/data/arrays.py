"""Rows of arrays: of NumPy, TensorFlow, pandas and SciPy, and of structures of these."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

KINDS = (
    "a NumPy array, a tensor, a sparse matrix of SciPy or a pandas DataFrame or Series with rows, "
    "or a tuple, list or dict of such arrays"
)


def is_instance(value: object, module: str, *names: str) -> bool:
    """Return whether `value` is of a class of `module`, without importing the module.

    Args:
        value: any object.
        module: the name of a top-level module; whatever made `value` has imported it.
        names: names of classes, with dots.
    """
    imported: Any = sys.modules.get(module)
    if imported is None:
        return False
    return isinstance(value, tuple(operator.attrgetter(name)(imported) for name in names))


def rows_of(data: Any) -> int:
    """Return the number of rows of all arrays in `data`.

    Raises:
        TypeError: if `data` has anything but arrays with rows.
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
        or is_instance(data, "tensorflow", "Tensor", "RaggedTensor", "SparseTensor", "Variable")
        or _is_of_scipy(data)
        or is_instance(data, "pandas", "DataFrame", "Series")
    )
    return is_array and len(data.shape) > 0


def _is_of_scipy(data: Any) -> bool:
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(data))


def _take(array: Any, rows: slice | np.ndarray) -> Any:
    if is_instance(array, "pandas", "DataFrame", "Series"):
        return array.iloc[rows]
    if _is_of_scipy(array):
        return array.tocsr()[rows]
    is_sparse = is_instance(array, "tensorflow", "SparseTensor")
    is_dense = not is_sparse and not is_instance(array, "tensorflow", "RaggedTensor")
    if isinstance(array, np.ndarray) or (isinstance(rows, slice) and is_dense):
        return array[rows]
    import tensorflow as tf

    places = np.arange(array.shape[0])[rows] if isinstance(rows, slice) else rows
    return (_gather if is_sparse else tf.gather)(array, places)


def _gather(sparse: Any, places: np.ndarray) -> Any:
    """Return rows of a `tf.SparseTensor`."""
    import tensorflow as tf

    sparse = tf.sparse.reorder(sparse)
    rows, numbers = sparse.indices[:, 0], tf.range(tf.shape(sparse.values)[0])
    of_rows = tf.RaggedTensor.from_value_rowids(numbers, rows, nrows=sparse.dense_shape[0])
    entries = tf.gather(of_rows, places)
    columns = tf.gather(sparse.indices, entries.values)[:, 1:]
    indices = tf.concat([entries.value_rowids()[:, tf.newaxis], columns], axis=1)
    shape = tf.concat([[len(places)], sparse.dense_shape[1:]], axis=0)
    return tf.SparseTensor(indices, tf.gather(sparse.values, entries.values), shape)
