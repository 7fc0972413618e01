"""Drawn regressions whose columns depend on each other."""

from __future__ import annotations

import numpy as np

GROUP, CORRELATION, NOISE, SUPPORT = 10, 0.9, 0.5, 30


def correlated(rows: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns columns in groups of 10, and a target of 30 of them.

    Neighbors of a group have a correlation of 0.9, those two apart 0.81, and so on; groups are
    independent. All columns have the variance 1.
    """
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, columns))
    for column in range(columns):
        if column % GROUP:
            x[:, column] *= (1 - CORRELATION**2) ** 0.5
            x[:, column] += CORRELATION * x[:, column - 1]
    chosen = random.choice(columns, SUPPORT, replace=False)
    return x, x[:, chosen] @ random.normal(size=len(chosen)) + NOISE * random.normal(size=rows)


def steepest(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the least alpha whose solution is 0."""
    centered = y - y.mean()
    return float(np.abs((x - x.mean(axis=0)).T @ centered).max() / len(y))
