"""Order ratings so that NumPy can take many steps of stochastic gradient descent at once.

Two ratings that share no row and no column change different factors: their steps commute, bit for
bit. So a block's ratings are arranged in waves, within which no row and no column occurs twice. A
wave is one vectorized step, and equals its ratings one after the other. This is an edge coloring of
the bipartite graph of rows and columns, by the first color that is free at both ends, which takes
at most twice as many waves as the busiest row or column has ratings.
"""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Waves:
    """Hold the ratings of a block, wave after wave.

    Attributes:
        rows: the place of each rating's row, (ratings,).
        columns: the place of its column.
        values: the ratings.
        ends: where each wave ends.
    """

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    ends: np.ndarray

    def descend(
        self, row_factors: np.ndarray, column_factors: np.ndarray, rate: float, penalty: float
    ) -> None:
        """Take a step for every rating: e = v - w h; w += rate (e h - penalty w), h alike.

        Args:
            row_factors: (rows, factors), changed.
            column_factors: (columns, factors), changed.
            rate: the length of a step.
            penalty: the weight of the squared factors.
        """
        begin = 0
        for end in self.ends:
            rows, columns = self.rows[begin:end], self.columns[begin:end]
            w, h = row_factors[rows], column_factors[columns]
            errors = self.values[begin:end] - np.einsum("ij,ij->i", w, h)
            row_factors[rows] = w + rate * (errors[:, np.newaxis] * h - penalty * w)
            column_factors[columns] = h + rate * (errors[:, np.newaxis] * w - penalty * h)
            begin = end

    def squared_error(self, row_factors: np.ndarray, column_factors: np.ndarray) -> float:
        """Return the sum of the squared errors."""
        products = np.einsum("ij,ij->i", row_factors[self.rows], column_factors[self.columns])
        return float(np.square(self.values - products).sum())


def arrange(rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> Waves:
    """Arrange ratings in waves, each in the order given.

    Args:
        rows: the place of each rating's row, (ratings,).
        columns: the place of its column.
        values: the ratings.
    """
    colors = np.zeros(len(rows), np.int64)
    # Bit c says that the row or column has a rating in wave c.
    row_colors: dict[int, int] = {}
    column_colors: dict[int, int] = {}
    for place, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        mask = row_colors.get(row, 0) | column_colors.get(column, 0)
        bit = ~mask & (mask + 1)  # the lowest that is not set
        row_colors[row] = row_colors.get(row, 0) | bit
        column_colors[column] = column_colors.get(column, 0) | bit
        colors[place] = bit.bit_length() - 1
    order = np.argsort(colors, kind="stable")
    counts = np.bincount(colors) if len(colors) else np.empty(0, np.int64)
    return Waves(rows[order], columns[order], values[order], np.cumsum(counts))
