"""Functions on SciPy's sparse matrices. SciPy is imported when it is first used."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def scipy_sparse(
    purpose: str = "ringar.parallel.scan multiplies sparse Jacobians with",
) -> ModuleType:
    """Return the module `scipy.sparse`.

    Args:
        purpose: the beginning of the error's sentence about SciPy.

    Raises:
        ImportError: SciPy is missing; the error says how to install it.
    """
    try:
        import scipy.sparse
    except ImportError as error:
        raise ImportError(
            f"{purpose} SciPy 1.10 or later, which is missing: {error}. "
            "Install it with: pip install 'scipy>=1.10'"
        ) from error
    return scipy.sparse


def csr(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> csr_array:
    """Return a CSR matrix of arrays whose rows are sorted, with 32-bit indices if possible."""
    largest = max(*shape, len(data))
    width = np.int32 if largest <= np.iinfo(np.int32).max else np.int64
    arrays = (data, indices.astype(width, copy=False), indptr.astype(width, copy=False))
    matrix = scipy_sparse().csr_array(arrays, shape=shape, copy=False)
    matrix.has_sorted_indices = True
    return matrix


def repeat(matrix: csr_array, times: int) -> csr_array:
    """Return the block-diagonal matrix with `times` copies of a CSR matrix."""
    if times == 1:
        return matrix
    rows, columns = matrix.shape
    copies = np.arange(times, dtype=np.int64)[:, None]
    ends = (matrix.indptr[None, 1:] + copies * matrix.nnz).ravel()
    return csr(
        np.tile(matrix.data, times),
        (matrix.indices[None] + copies * columns).ravel(),
        np.concatenate([[0], ends]),
        (times * rows, times * columns),
    )


def multiplications(left: csr_array, right: csr_array) -> int:
    """Return the number of multiply-adds in the product of two CSR matrices.

    Entry (i, k) of `left` is multiplied by every entry in row k of `right`.
    """
    in_row = np.diff(right.indptr)
    return int(in_row[left.indices].sum(dtype=np.int64))


def sparsity(matrix: csr_array) -> float:
    """Return the fraction of a CSR matrix that is not stored."""
    rows, columns = matrix.shape
    return 1 - matrix.nnz / (rows * columns)
