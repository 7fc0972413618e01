"""The elements of a scan over layers: gradients of a batch, and Jacobians of layers."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from ringar.errors import OutOfMemoryError
from ringar.parallel.scan.sparse import multiplications, repeat

if TYPE_CHECKING:
    from scipy.sparse import csr_array


#: The most entries of a product of two matrices; an entry takes 8 bytes in float32.
MOST_ENTRIES = 2**28


@dataclasses.dataclass(frozen=True)
class Element:
    """Hold a transposed Jacobian, or a product of transposed Jacobians.

    Attributes:
        matrix: CSR; n x m if all examples share it, otherwise block-diagonal for the whole batch.
        per_example: whether it differs between examples.
        name: the names of the layers.
    """

    matrix: csr_array
    per_example: bool
    name: str = ""


def compose(left: np.ndarray | Element, right: Element) -> np.ndarray | Element:
    """Apply the operator of the scan: `right` after `left`, the product right times left.

    Args:
        left: gradients, of shape (batch, m), or a matrix.
        right: a matrix.

    Returns:
        Gradients, of shape (batch, n), or a matrix, like `left`.

    Raises:
        OutOfMemoryError: the product of two matrices could have too many entries.
    """
    if isinstance(left, np.ndarray):
        return _apply(right, left)
    first, second = same_blocks(left, right)
    _check_size(left, right, first, second)
    name = f"{left.name}, {right.name}"
    return Element(second @ first, left.per_example or right.per_example, name)


def same_blocks(left: Element, right: Element) -> tuple[csr_array, csr_array]:
    """Return the two matrices, both shared by all examples or both block-diagonal."""
    first, second = left.matrix, right.matrix
    if left.per_example and not right.per_example:
        second = repeat(second, first.shape[0] // second.shape[1])
    if right.per_example and not left.per_example:
        first = repeat(first, second.shape[1] // first.shape[0])
    return first, second


def _apply(element: Element, vectors: np.ndarray) -> np.ndarray:
    if element.per_example:
        result: np.ndarray = element.matrix @ vectors.reshape(-1)
        return result.reshape(len(vectors), -1)
    return np.ascontiguousarray((element.matrix @ vectors.T).T)


def _check_size(left: Element, right: Element, first: csr_array, second: csr_array) -> None:
    # The entries of a product are at most its multiplications, and at most those of a dense matrix.
    dense = math.prod((second.shape[0], first.shape[1]))
    if left.per_example and not right.per_example:
        dense //= max(second.shape[1] // right.matrix.shape[1], 1)
    most = min(multiplications(second, first), dense)
    if most > MOST_ENTRIES:
        raise OutOfMemoryError(
            "A product of Jacobians in a scan may have at most "
            f"{MOST_ENTRIES} entries. Received: layers {left.name} and {right.name}, whose product "
            f"may have {most}. Use fewer `levels` (0 multiplies no matrices by each other), or a "
            "smaller batch."
        )
