"""Counts the operations of the scan of tf_ops/scan/scan.cc, and predicts its time from them.

Counts are those of one example, of the backward pass through `length` steps with a tree of so many
`levels`. They are exact: tests/benchmarks/scan/test_scan.py walks the tree and compares.

    product      of two Jacobians, 2 H^3 operations for H units
    apply        a vector times a Jacobian, 2 H^2
    Jacobian     made where it is needed, and kept nowhere, H^2

Beside the scan the backward pass takes an outer product per step for the recurrent kernel's
gradient, 2 H^2. One time per operation and one per call, for TensorFlow's part of a step and for
the other layers, are fitted to measured times by least squares of the relative error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WHOLE = 62
"""Levels that no tree has: the scan, and not a hybrid."""


@dataclass(frozen=True)
class Counts:
    """The number of operations of each kind."""

    products: int = 0
    applies: int = 0
    jacobians: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.products + other.products,
            self.applies + other.applies,
            self.jacobians + other.jacobians,
        )

    def times(self, factor: int) -> Counts:
        return Counts(self.products * factor, self.applies * factor, self.jacobians * factor)

    def operations(self, units: int) -> int:
        """Returns the number of multiplications and additions."""
        square = units * units
        return 2 * self.products * square * units + (2 * self.applies + self.jacobians) * square


def tree_levels(length: int) -> int:
    """Returns the levels of the whole tree over the vector and `length` Jacobians."""
    return math.ceil(math.log2(length + 1))


def _raised(level: int, at_edge: bool) -> Counts:
    """Counts the up-sweep to a full node, whose first leaf is the vector at the left edge."""
    if level == 0:
        return Counts()  # a leaf is made where it is used
    leaves = 1 << level
    if at_edge:
        return Counts(leaves - 1 - level, level, leaves - 1)
    return Counts(leaves - 1, 0, leaves)


def _carried(level: int) -> Counts:
    """Counts taking a vector through a node; a leaf is made for it."""
    return Counts(0, 1, 1 if level == 0 else 0)


def _swept(level: int, at_edge: bool) -> Counts:
    """Counts the down-sweep within a full node, which has fewer vectors at the left edge."""
    if level == 0:
        return Counts()
    leaves = 1 << level
    if at_edge:
        return Counts(0, leaves - 1 - level, leaves // 2 - 1)
    return Counts(0, leaves - 1, leaves // 2)


def count(length: int, levels: int = WHOLE) -> Counts:
    """Counts the backward pass of an example through `length` steps, one or more."""
    positions = length + 1
    levels = min(levels, tree_levels(length))
    blocks = math.ceil(positions / (1 << levels))
    total = Counts()
    if blocks > 1:
        total += _raised(levels, True) + _swept(levels, True)
        inner = _raised(levels, False) + _swept(levels, False) + _carried(levels)
        total += inner.times(blocks - 2)
    # The last block need not be full: left children only, all of which are.
    begin = (blocks - 1) << levels
    for level in reversed(range(levels)):
        middle = begin + (1 << level)
        if middle < positions:
            total += _raised(level, begin == 0) + _swept(level, begin == 0)
            total += _carried(level) if begin > 0 else Counts()
            begin = middle
    return total + _carried(0)


def operations(length: int, batch: int, units: int, levels: int = WHOLE) -> int:
    """Returns those of a layer's backward pass: the scan, and the recurrent kernel's gradient."""
    return batch * (count(length, levels).operations(units) + 2 * length * units * units)


@dataclass(frozen=True)
class Rates:
    """Fitted rates, in seconds."""

    call: float
    operation: float

    def seconds(self, amount: float) -> float:
        """Returns the predicted seconds of so many operations."""
        return self.call + amount * self.operation


def fit(amounts: Sequence[float], seconds: Sequence[float]) -> Rates:
    """Fits rates, none below 0, with the least sum of (predicted / measured - 1)^2.

    Args:
        amounts: operations of each measurement; there must be one.
        seconds: what it took, more than 0.
    """
    pairs = list(zip(amounts, seconds, strict=True))
    # Normal equations of call / t + operation * amount / t = 1.
    cc = sum(1 / t**2 for _, t in pairs)
    ca = sum(a / t**2 for a, t in pairs)
    aa = sum(a * a / t**2 for a, t in pairs)
    c = sum(1 / t for _, t in pairs)
    a = sum(a / t for a, t in pairs)
    determinant = cc * aa - ca * ca
    if determinant > 1e-12 * cc * aa:
        call, operation = (c * aa - a * ca) / determinant, (a * cc - c * ca) / determinant
        if call >= 0 and operation >= 0:
            return Rates(call, operation)
    # One of them is 0: the one that explains less.
    return Rates(0.0, a / aa) if a * a / aa >= c * c / cc else Rates(c / cc, 0.0)
