"""The exclusive scan over the transposed Jacobians of a chain of layers.

Back-propagation through layers 1 to n multiplies a vector by one matrix after the other:

    dl/dh_i = J_(i+1)^T dl/dh_(i+1)

With `A ⋄ B = B A`, which is associative but does not commute, all of these gradients are the
exclusive prefixes of

    [dl/dh_n, J_n^T, ..., J_2^T, J_1^T]   ->   [-, dl/dh_n, dl/dh_(n-1), ..., dl/dh_1]

(Wang, Bai and Pekhimenko, "BPPSA: Scaling back-propagation by parallel scan algorithm", MLSys 2020,
arXiv:1907.10134, algorithm 1; Blelloch, "Prefix sums and their applications", 1990.) The last
element, J_1^T, is part of no prefix, and is never read.

**Steps.** On level d the elements form blocks of 2^d neighbors; the last block may be shorter. The
last element of a block represents it. Blocks are taken in pairs, a left one that ends in l and a
right one that ends in r.

- Up-sweep, level 0 first. The right end gets the product of the pair: a[r] <- a[l] ⋄ a[r]. The pair
  at the end of the chain is left out, since no prefix has all of it.
- Serial. After `levels` levels, the prefix of each block follows from the prefix of the block to
  its left.
- Down-sweep, level 0 last. The prefix of the left block is that of the pair; the prefix of the
  right block includes the left block, too: t = a[l]; a[l] <- a[r]; a[r] <- a[r] ⋄ t. The operands
  are in the reverse order of Blelloch's scan of numbers.

`levels=0` is the plain chain of matrix-vector products. With all levels, log2 of the length, there
is no serial part. The paper's hybrid is in between: it makes fewer products of two matrices, which
get denser with each level.

**Operations.** Only the up-sweep multiplies matrices by matrices, and not in its leftmost pairs,
which have the vector; all other products are matrix times vector. Of m elements, the chain makes
m - 2 products in m - 2 rounds. All levels make less than 2m products, in 2 log2(m) - 2 rounds whose
products are independent of each other. The gain depends on the cost of products of two matrices,
which is higher than with a vector: `benchmarks.scan.analysis` counts the operations.

**Across ranks.** `reduce` and `sweep` are separate functions for elements on several ranks: a rank
reduces its shard of the chain (`plan(..., with_total=True)`) to one element, a scan over ranks
computes the prefix of each shard, and each rank sweeps down from its prefix (`incoming`).
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

#: `operator(left, right)` is left ⋄ right.
Operator = Callable[[Any, Any], Any]
#: `map(function, items)`, in any order, as of an executor.
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


class Phase(enum.Enum):
    """Name a phase of the scan."""

    UP = "up"
    SERIAL = "serial"
    DOWN = "down"


class Kind(enum.Enum):
    """Name the kind of a product, if the first element is a vector."""

    MATRICES = "matrix x matrix"
    VECTOR = "matrix x vector"
    COPY = "copy"


@dataclasses.dataclass(frozen=True)
class Step:
    """Describe one product, or a copy if the left prefix is empty.

    Attributes:
        phase: the phase of the scan.
        level: the level; its blocks have 2^level elements.
        left: the end of the left block.
        right: the end of the right block.
        kind: the kind of product.
    """

    phase: Phase
    level: int
    left: int
    right: int
    kind: Kind


@dataclasses.dataclass(frozen=True)
class Plan:
    """List the products of a scan.

    Attributes:
        length: the number of elements.
        levels: the levels of the up-sweep and the down-sweep.
        up: the rounds of the up-sweep, each of independent steps.
        down: the rounds of the serial part, of one step each, then those of the down-sweep.
    """

    length: int
    levels: int
    up: tuple[tuple[Step, ...], ...]
    down: tuple[tuple[Step, ...], ...]

    @property
    def rounds(self) -> tuple[tuple[Step, ...], ...]:
        """All rounds, in order."""
        return self.up + self.down

    def count(self, kind: Kind) -> int:
        """Return the number of steps of a kind."""
        return sum(step.kind is kind for steps in self.rounds for step in steps)


def most_levels(length: int) -> int:
    """Return the levels of a scan without a serial part: log2 of `length`, rounded up."""
    return max(length - 1, 0).bit_length()


def plan(length: int, levels: int | None = None, *, with_total: bool = False) -> Plan:
    """Return the steps of a scan.

    Args:
        length: the number of elements.
        levels: the number of levels, at most all of them, which is the default.
        with_total: whether `reduce` computes the product of all elements, too, as its last element;
            this needs all levels.

    Raises:
        ValueError: a number is negative, or `with_total` is true without all levels.
    """
    if length < 0 or (levels is not None and levels < 0):
        raise ValueError(
            "`length` and `levels` must not be negative. "
            f"Received: length={length}, levels={levels}"
        )
    most = most_levels(length)
    levels = most if levels is None else min(levels, most)
    if with_total and levels < most:
        raise ValueError(
            f"`levels` must be all {most} of them for the product of all {length} elements. "
            f"Received: levels={levels}"
        )
    up, down = [], []
    for level in range(levels):
        pairs = _pairs(length, level)
        steps = [_up(level, *pair) for pair in pairs if with_total or pair[1] < length - 1]
        up.append(tuple(steps))
        down.append(tuple(_down(level, *pair) for pair in pairs))
    ends = _ends(length, levels)
    serial = [
        (Step(Phase.SERIAL, levels, left, right, Kind.VECTOR if i else Kind.COPY),)
        for i, (left, right) in enumerate(itertools.pairwise(ends))
    ]
    return Plan(length, levels, tuple(up), (*serial, *reversed(down)))


def scan(
    elements: Sequence[Any], operator: Operator, levels: int | None = None, mapper: Map = map
) -> list[Any]:
    """Return the exclusive prefixes of `elements`.

    Args:
        elements: a vector and matrices; the last one is not used, and may be any object.
        operator: `operator(left, right)`, associative, without side effects.
        levels: as for `plan`.
        mapper: applies a function to each step of a round: `executor.map` does so concurrently.

    Returns:
        The product of the elements before i, for each i; None at 0.
    """
    steps = plan(len(elements), levels)
    return sweep(reduce(elements, steps, operator, mapper), steps, operator, mapper=mapper)


def reduce(
    elements: Sequence[Any], steps: Plan, operator: Operator, mapper: Map = map
) -> list[Any]:  # fmt: skip
    """Return the up-sweep.

    Returns:
        The elements, where the product of each block of the plan replaces its last element.
    """
    products = list(elements)
    for steps_of_level in steps.up:
        results = mapper(lambda step: operator(products[step.left], products[step.right]),
                       steps_of_level)  # fmt: skip
        for step, result in zip(steps_of_level, list(results), strict=True):
            products[step.right] = result
    return products


def sweep(
    products: Sequence[Any],
    steps: Plan,
    operator: Operator,
    incoming: Any = None,
    mapper: Map = map,
) -> list[Any]:
    """Return the serial part and the down-sweep.

    Args:
        products: the result of `reduce`, by the same plan.
        steps: the plan.
        operator: as for `scan`.
        incoming: the prefix of the first element, or None.
        mapper: as for `scan`.

    Returns:
        The prefix of each element.
    """
    before: list[Any] = [None] * steps.length
    ends = _ends(steps.length, steps.levels)
    if ends:
        before[ends[0]] = incoming

    def product(step: Step) -> Any:
        prefix = before[step.left if step.phase is Phase.SERIAL else step.right]
        return products[step.left] if prefix is None else operator(prefix, products[step.left])

    for steps_of_round in steps.down:
        results = list(mapper(product, steps_of_round))
        for step, result in zip(steps_of_round, results, strict=True):
            if step.phase is Phase.DOWN:
                before[step.left] = before[step.right]
            before[step.right] = result
    return before


def _ends(length: int, level: int) -> list[int]:
    """Return the ends of the blocks of a level."""
    size = 1 << level
    return [min(begin + size, length) - 1 for begin in range(0, length, size)]


def _pairs(length: int, level: int) -> list[tuple[int, int]]:
    ends = _ends(length, level)
    return list(zip(ends[::2], ends[1::2], strict=False))


def _up(level: int, left: int, right: int) -> Step:
    has_vector = left < 1 << level
    return Step(Phase.UP, level, left, right, Kind.VECTOR if has_vector else Kind.MATRICES)


def _down(level: int, left: int, right: int) -> Step:
    is_first = left < 1 << level
    return Step(Phase.DOWN, level, left, right, Kind.COPY if is_first else Kind.VECTOR)
