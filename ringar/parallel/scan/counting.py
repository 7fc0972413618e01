"""Counts of a scan's operations, without multiplying numbers.

A product of two CSR matrices takes two operations, a multiplication and an addition, for each entry
(i, k) of the left one and each entry in row k of the right one; a product with a dense vector takes
two for each entry. The pattern of the product is the product of the patterns.

Products of one round are independent. With a worker for each, a round takes as long as its longest
product: the sum of that over the rounds is the critical path. With fewer workers it takes at least
all its operations divided by their number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ringar.parallel.scan import tree
from ringar.parallel.scan.elements import Element, same_blocks
from ringar.parallel.scan.sparse import csr, multiplications, sparsity

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class TooManyError(Exception):
    """Report a product with more operations than the limit."""


@dataclasses.dataclass(frozen=True)
class Product:
    """Count one product of a scan.

    Attributes:
        flops: the operations of the whole batch.
        is_vector: whether it is matrix times vector.
        sparsity: the sparsity of the result; 0 for a vector.
        entries: the number of entries of the result.
    """

    flops: int
    is_vector: bool
    sparsity: float
    entries: int


@dataclasses.dataclass(frozen=True)
class Round:
    """Hold products that are independent of each other.

    Attributes:
        phase: the phase of the scan.
        level: the level of the tree.
        products: the products, without copies.
    """

    phase: tree.Phase
    level: int
    products: tuple[Product, ...]

    @property
    def flops(self) -> int:
        """The operations of all products."""
        return sum(product.flops for product in self.products)

    def time(self, workers: int | None = None) -> float:
        """Return the sequential operations with `workers` workers; None: one per product."""
        longest = max((product.flops for product in self.products), default=0)
        return longest if workers is None else max(longest, self.flops / workers)


class Counter:
    """Count the operations of scans over the same elements.

    Args:
        elements: the elements of a scan, without the first, the vector, and the last, which is not
            used.
        batch: the number of examples in the elements.
        scale: the number of such batches, which multiplies the operations that differ between
            examples: one example can stand for a batch.
        limit: the most operations that a product of matrices may have.
    """

    def __init__(
        self, elements: Sequence[Element], batch: int = 1, scale: int = 1, limit: float = 4e9
    ) -> None:
        self._elements = [dataclasses.replace(e, matrix=_pattern(e.matrix)) for e in elements]
        self._batch, self._scale, self.limit = batch, scale, limit
        # Scans of different levels share products. The operands are kept, so that ids stay unique.
        self._products: dict[tuple[int, int], tuple[Any, Any, Element, Product]] = {}

    @property
    def length(self) -> int:
        """The length of the scan, with the vector and the last element."""
        return len(self._elements) + 2

    def count(self, levels: int) -> list[Round]:
        """Return the rounds of a scan.

        Raises:
            TooManyError: a product of matrices has more operations than the limit.
        """
        plan = tree.plan(self.length, levels)
        rounds: list[Round] = []
        counted: list[Product] = []

        def operator(left: Element | None, right: Element) -> Any:
            result, product = self._multiply(left, right)
            counted.append(product)
            return result

        def run_steps(function: Callable[[Any], Any], steps: Iterable[Any]) -> list[Any]:
            counted.clear()
            steps = list(steps)
            results = [function(step) for step in steps]
            if steps:
                rounds.append(Round(steps[0].phase, steps[0].level, tuple(counted)))
            return results

        products = tree.reduce([_VECTOR, *self._elements, None], plan, operator, run_steps)
        tree.sweep(products, plan, operator, mapper=run_steps)
        return rounds

    def _multiply(self, left: Any, right: Element) -> tuple[Any, Product]:
        if left is _VECTOR:
            flops = 2 * right.matrix.nnz * self._scale
            if not right.per_example:
                flops *= self._batch
            size = right.matrix.shape[0]
            return _VECTOR, Product(flops, True, 0.0, size)
        key = (id(left), id(right))
        if key not in self._products:
            self._products[key] = (left, right, *self._multiply_matrices(left, right))
        return self._products[key][2:]

    def _multiply_matrices(self, left: Element, right: Element) -> tuple[Element, Product]:
        first, second = same_blocks(left, right)
        per_example = left.per_example or right.per_example
        flops = 2 * multiplications(second, first) * (self._scale if per_example else 1)
        if flops > self.limit:
            raise TooManyError(f"{left.name} and {right.name}: {flops} operations")
        result = Element(second @ first, per_example, f"{left.name}, {right.name}")
        # The sparsity is that of one example's block.
        blocks = self._batch if per_example else 1
        zeros = 1 - (1 - sparsity(result.matrix)) * blocks
        return result, Product(flops, False, zeros, result.matrix.nnz)


def critical_path(rounds: Iterable[Round], workers: int | None = None) -> float:
    """Return the number of operations that must run one after the other."""
    return sum(round_.time(workers) for round_ in rounds)


def choose(counter: Counter, workers: int | None = None) -> int:
    """Return the least number of levels with the shortest critical path.

    It tries more levels until one product alone takes longer than the best scan so far.
    """
    best, shortest = 0, critical_path(counter.count(0), workers)
    for levels in range(1, tree.most_levels(counter.length)):
        counter.limit = min(counter.limit, shortest)
        try:
            length = critical_path(counter.count(levels), workers)
        except TooManyError:
            break
        if length < shortest:
            best, shortest = levels, length
    return best


#: Stands for the gradients of a batch.
_VECTOR: Any = "vector"


def _pattern(matrix: csr_array) -> csr_array:
    return csr(np.ones(matrix.nnz, bool), matrix.indices, matrix.indptr, matrix.shape)
