"""The layers of a sparse net as SciPy matrices: one row per neuron, one column per input of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ringar.parallel.scan.sparse import scipy_sparse as scipy_for

if TYPE_CHECKING:
    from scipy.sparse import csr_array, sparray

MOST_ENTRIES = np.iinfo(np.int32).max
"""The native kernels count entries and neurons in 32 bits."""


scipy_sparse = functools.partial(scipy_for, "ringar.parallel.sparse takes layers as matrices of")


def csr_layers(layers: Sequence[sparray], dtype: str) -> list[csr_array]:
    """Return the layers of a net as CSR matrices with sorted rows, after checks.

    Args:
        layers: SciPy matrices of any format, [neurons, neurons of the layer before] each.
        dtype: that of the result, "float32" or "float64".

    Raises:
        ValueError: a layer is no sparse matrix, does not fit the layer before, has no neuron, one
            without inputs or a weight that is not finite, or there is none.
    """
    sparse = scipy_sparse()
    if not isinstance(layers, list | tuple) or not layers:
        raise ValueError(
            "`layers` must be a list of SciPy sparse matrices, at least one. "
            f"Received: {type(layers).__name__}"
        )
    checked: list[csr_array] = []
    for number, layer in enumerate(layers):
        if not sparse.issparse(layer) or layer.ndim != 2:
            raise ValueError(
                f"`layers[{number}]` must be a sparse matrix of SciPy, such as "
                f"scipy.sparse.csr_array(weights). Received: {type(layer).__name__}"
            )
        matrix = sparse.csr_array(layer, dtype=dtype, copy=True)
        matrix.sum_duplicates()
        _check(number, matrix, checked[-1].shape[0] if checked else matrix.shape[1])
        checked.append(matrix)
    return checked


def _check(number: int, matrix: csr_array, inputs: int) -> None:
    if matrix.shape[1] != inputs:
        raise ValueError(
            f"`layers[{number}]` must have a column for each of the {inputs} neurons of the layer "
            f"before. Received: shape {matrix.shape}. Rows are neurons: transpose matrices whose "
            "columns are."
        )
    if matrix.shape[0] == 0:
        raise ValueError(
            f"`layers[{number}]` must have a row for each of its neurons, at least one. "
            f"Received: shape {matrix.shape}"
        )
    without = np.flatnonzero(np.diff(matrix.indptr) == 0)
    if without.size:
        raise ValueError(
            f"`layers[{number}]` must have at least one entry in each row: a neuron without inputs "
            f"cannot learn. Received: {without.size} empty rows, the first of them {without[0]}. "
            "Remove these neurons here and the columns that read them in the next layer, or give "
            "them an entry."
        )
    if not np.isfinite(matrix.data).all():
        raise ValueError(
            f"`layers[{number}]` must have finite weights. Received: NaN or infinity in "
            f"{np.count_nonzero(~np.isfinite(matrix.data))} entries"
        )
    if matrix.nnz > MOST_ENTRIES:
        raise ValueError(
            f"`layers[{number}]` must have at most {MOST_ENTRIES} entries. "
            f"Received: {matrix.nnz}. Split it into two layers."
        )


def entries_of(offsets: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the places of the entries of some rows in a CSR matrix.

    Args:
        offsets: `indptr` of the matrix, int [rows of the matrix + 1].
        rows: the rows, in the order of the result.

    Returns:
        int64 [entries of these rows].
    """
    starts, counts = offsets[rows].astype(np.int64), np.diff(offsets)[rows].astype(np.int64)
    ends = np.cumsum(counts)
    total = int(ends[-1]) if ends.size else 0
    return np.repeat(starts - (ends - counts), counts) + np.arange(total)


def offsets_of(counts: np.ndarray) -> np.ndarray:
    """Return where each row of `counts` entries begins, and the end, int64 [rows + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
