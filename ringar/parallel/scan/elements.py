"""What a scan over layers multiplies: gradients of a batch, and the Jacobians of its layers."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from ringar.errors import OutOfMemoryError
from ringar.parallel.scan.sparse import multiplications, repeat

if TYPE_CHECKING:
    from scipy.sparse import csr_array


#: A product of two matrices may have so many entries, of 8 bytes each in float32.
MOST_ENTRIES = 2**28


@dataclasses.dataclass(frozen=True)
class Element:
    """Hold a transposed Jacobian, or a product of some.

    Attributes:
        matrix: CSR; n x m if it is that of all examples, and of the whole batch, block-diagonal, if
            it is not.
        per_example: whether it differs between examples.
        name: of the layers.
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
        Of the same kind as `left`: gradients, of shape (batch, n), or a matrix.

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
    """Return the two matrices, both for all examples or both block-diagonal for the batch."""
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
    # A product has at most as many entries as there are multiplications, and as there is room for.
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
