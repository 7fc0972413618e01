"""How many workers does a scan need to beat the serial chain? A model.

The backward pass through n steps takes n vectors through n Jacobians of H x H. One after the other,

    serial(n) = n a(H),        a: a vector times a matrix, 2 H^2 operations.

With p workers each takes n / p of them. Going up it multiplies its Jacobians, a product m(H) of
2 H^3 operations for each; then the p products are combined in a tree, log2 p levels up, of
products, and as many down, of vectors; then each takes the vector that came to it through its own
part:

    scan(n, p) = (n / p + log2 p) (m(H) + a(H)).

A product costs as much as H vectors. So with R = (m + a) / a, which is H + 1 by arithmetic alone,

    scan < serial   where   1 / p + (log2 p) / n < 1 / R,

and a chain needs more than R workers however long it is: about H, the price of turning vectors into
matrices. More where the chain is short, for then the levels of the tree count: more than n ln 2
workers are of no use, and where n <= R (log2 n + 0.91) no number of them is enough. Every example
has a chain of its own: a batch of B keeps B workers busy without any scan.

A processor's vector units like products better than vectors, so that m / a is less than H here,
above all where H is large; `measured` takes a and m from benchmarks.scan.worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

MOST = 10_000
UNITS = (1, 2, 4, 8, 16, 20, 32, 64, 128, 256)
LENGTHS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000)


@dataclass(frozen=True)
class Costs:
    """Of a product of two matrices and of a matrix and a vector, by H, in any unit."""

    product: Callable[[float], float]
    apply: Callable[[float], float]

    def ratio(self, units: float) -> float:
        """Returns R, the cost of a step of the scan in steps of the chain."""
        return (self.product(units) + self.apply(units)) / self.apply(units)


ARITHMETIC = Costs(lambda units: 2 * units**3, lambda units: 2 * units**2)


def measured(seconds: Mapping[int, tuple[float, float]]) -> Costs:
    """Returns costs by H from (product, apply), interpolated on logarithmic axes."""
    logarithms = np.log(sorted(seconds))

    def between(index: int) -> Callable[[float], float]:
        values = np.log([seconds[units][index] for units in sorted(seconds)])
        return lambda units: math.exp(np.interp(math.log(units), logarithms, values))

    return Costs(between(0), between(1))


def serial_cost(units: float, length: int, costs: Costs) -> float:
    """Returns the cost of the chain."""
    return length * costs.apply(units)


def scan_cost(units: float, length: int, workers: int, costs: Costs) -> float:
    """Returns the cost of the scan with so many workers."""
    rounds = length / workers + math.log2(workers)
    return rounds * (costs.product(units) + costs.apply(units))


def workers_needed(units: float, length: int, costs: Costs, most: int = MOST) -> int | None:
    """Returns the fewest with which the scan beats the chain, or None if `most` do not."""
    workers = np.arange(1, most + 1)
    faster = (1 / workers + np.log2(workers) / length) * costs.ratio(units) < 1
    return int(workers[faster.argmax()]) if faster.any() else None


def table(
    units: Iterable[float], lengths: Iterable[int], costs: Costs, most: int = MOST
) -> np.ndarray:
    """Returns the workers needed, by H and length; NaN where no number is enough."""
    columns = list(lengths)
    rows = [[workers_needed(h, n, costs, most) for n in columns] for h in units]
    return np.array(rows, dtype=float)  # None becomes NaN
