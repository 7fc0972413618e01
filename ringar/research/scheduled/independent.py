"""Choose variables that may change at once: the dependency check of a scheduler.

Let F(b) = |y - X b|^2 / 2 + separable terms, with columns of X of length 1, and G = X^T X. A step
that minimizes F in coordinate j alone, by d_j, lowers F by at least d_j^2 / 2. If the coordinates
of a set S take their steps at once, from the same b, F changes by at most

    -sum_j d_j^2 / 2 + sum_{j < k} d_j d_k G_jk = -d^T (2 I - G_SS) d / 2.

Kim et al. (EuroSys 2016) choose S with |G_jk| below a threshold rho for each pair, which makes the
second sum small, but not smaller than the first if S is large. So the check here asks for 2 I -
G_SS to be positive definite, too: then **no round raises the objective**, whatever the steps are.
(It is the bound P <= 2 / eigenvalue of Bradley et al., "Shotgun", ICML 2011, for the set that was
chosen instead of all columns.) A Cholesky factor grows by one row with each variable that is taken.
"""

from __future__ import annotations

import numpy as np

MARGIN = 1e-6
"""Beyond the rounding of correlations in float64."""

ROUNDING = 1e-12
"""A correlation passes up to this much above `rho`: one of just `rho` is rounded up on some
processors, and down on others."""


class Independent:
    """Take variables one after the other, unless they depend on those taken before."""

    def __init__(self, correlations: np.ndarray, rho: float) -> None:
        """Begin with none.

        Args:
            correlations: between candidates, (candidates, candidates), with ones on the diagonal.
            rho: the largest absolute correlation between two variables that are taken.
        """
        size = len(correlations)
        self._correlations = correlations
        self._conflicts = np.abs(correlations) > rho + ROUNDING
        self._blocked = np.zeros(size, bool)
        self._selection: list[int] = []
        # The inverse of the Cholesky factor of 2 I - G of the selection.
        self._inverse = np.zeros((size, size))

    def take(self, candidate: int) -> bool:
        """Take a candidate if it is independent of those taken; return whether it is."""
        if self._blocked[candidate]:
            return False
        columns, count = self._selection, len(self._selection)
        inverse = self._inverse[:count, :count]
        row = -(inverse @ self._correlations[columns, candidate])
        rest = 1.0 - row @ row
        if rest < MARGIN:
            return False
        pivot = np.sqrt(rest)
        self._inverse[count, :count] = -(row @ inverse) / pivot
        self._inverse[count, count] = 1.0 / pivot
        columns.append(candidate)
        self._blocked |= self._conflicts[candidate]
        return True
