"""The design matrix of a Lasso, cut over ranks by rows or by columns.

A round exchanges, for n rows, d columns, S picked variables and C candidates over P ranks,

    cut        a rank holds           push                                survey
    rows       n/P x d, n/P of r      S inner products with the           C x C inner products,
                                      residual r                          C of them with r
    columns    n x d/P, n of r        n changes of r, S of coefficients   C columns of n, C inner
                                                                          products with r

Rows are the cut for many examples, columns the one for many variables. By rows a round's sums do
not depend on the number of ranks, but for their order. By columns each variable belongs to one
rank, which alone computes its step.

X is held transposed, since a round reads whole columns, and centered if there is an intercept.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import numpy as np

from ringar.collectives import Max, Sum, allgather, allreduce
from ringar.collectives.digest import digest
from ringar.job.process_sets import ProcessSet, or_all

Step = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Returns the changes of some variables, given their inner products with the residual."""

CONSTANT = 1e-24
"""A column is constant if centering leaves at most this part of its squares; rounding leaves 1e-30.
"""


class Design(abc.ABC):
    """Hold a rank's part of a design matrix and of the residual y - X b, with b = 0 at first.

    Attributes:
        columns: this rank's part of the transposed matrix.
        residual: its part of the residual, and `target` of y.
        rows: the number of rows of all ranks.
        squares: the squared lengths of all columns, (d,); `lengths` their roots, or 1.
        means: the means subtracted from all columns, (d,), and `target_mean` from y.
        constant: marks columns that are zero once they are centered.
        owners: the rank that computes the step of each variable; None: all do.
    """

    columns: np.ndarray
    residual: np.ndarray
    rows: int
    squares: np.ndarray
    means: np.ndarray
    target_mean: float
    owners: np.ndarray | None = None

    def __init__(
        self, x: np.ndarray, y: np.ndarray, intercept: bool, process_set: ProcessSet | None
    ) -> None:
        self.ranks = or_all(process_set)
        self.columns = np.array(x.T, np.float64, order="C")
        self.residual = y.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # `_check_scale` looks at the sums
            self._measure(intercept)
            wholes = self.squares + self.rows * self.means**2  # before centering
        if not self.rows:
            raise ValueError("`x` must have a row on some rank. Received: none on any")
        self.target = self.residual.copy()
        self._check_scale(wholes)
        self.constant = self.squares <= CONSTANT * wholes
        self.lengths = np.sqrt(np.where(self.constant, 1.0, self.squares))

    def _check_scale(self, wholes: np.ndarray) -> None:
        """Refuse data whose squares overflow. Collective: all ranks compare the same sums."""
        overflown = np.flatnonzero(~np.isfinite(wholes))
        if overflown.size:
            raise ValueError(
                "the squares of each column of `x` must have a finite sum. Received: column "
                f"{overflown[0]} (counted over all ranks) with a sum of {wholes[overflown[0]]}. "
                "Scale it, for example to a standard deviation of 1."
            )
        with np.errstate(over="ignore", invalid="ignore"):
            squares, _ = self.products()
        if not np.isfinite(squares):
            raise ValueError(
                f"the squares of `y` must have a finite sum. Received: {squares}. Scale `y`."
            )

    @abc.abstractmethod
    def _measure(self, intercept: bool) -> None:
        """Center, and measure all columns. Collective."""

    @staticmethod
    @abc.abstractmethod
    def describe(x: np.ndarray, y: np.ndarray) -> dict[str, object]:
        """Return the properties that must be equal on all ranks."""

    @abc.abstractmethod
    def survey(self, candidates: np.ndarray) -> np.ndarray:
        """Return this rank's part of the data for `correlations`."""

    @abc.abstractmethod
    def correlations(self, candidates: np.ndarray, surveyed: np.ndarray) -> np.ndarray:
        """Return the correlations between candidates, from the sum of the surveys."""

    def slopes(self, surveyed: np.ndarray) -> np.ndarray:
        """Return the products of candidates with the residual that there was at their survey."""
        return surveyed[:, -1]

    @abc.abstractmethod
    def push(self, picked: np.ndarray, step: Step) -> np.ndarray:
        """Return this rank's part of the changes."""

    @abc.abstractmethod
    def pull(self, picked: np.ndarray, pushed: np.ndarray, step: Step) -> np.ndarray:
        """Change the residual; return the changes of the variables."""

    @abc.abstractmethod
    def products(self) -> tuple[float, float]:
        """Return r^T r and r^T y over all rows. Collective."""

    @abc.abstractmethod
    def steepest(self) -> float:
        """Return the largest absolute inner product of a column with r. Collective."""

    def _sum(self, values: np.ndarray) -> np.ndarray:
        return allreduce(values, Sum, name="scheduled.design", process_set=self.ranks)


class Rows(Design):
    """Cut by rows: each rank has some examples, with all variables."""

    def _measure(self, intercept: bool) -> None:
        parts = [self.columns.sum(axis=1), [self.residual.sum(), len(self.residual)]]
        *sums, total, rows = self._sum(np.concatenate(parts))
        self.rows = int(rows)
        self.means, self.target_mean = np.array(sums) / rows * intercept, total / rows * intercept
        self.columns -= self.means[:, np.newaxis]
        self.residual -= self.target_mean
        self.squares = self._sum(np.einsum("ij,ij->i", self.columns, self.columns))

    @staticmethod
    def describe(x: np.ndarray, y: np.ndarray) -> dict[str, object]:
        """Return the property that must be equal on all ranks: the number of columns."""
        return {"number of columns of `x`": x.shape[1]}

    def survey(self, candidates: np.ndarray) -> np.ndarray:
        """Return the inner products of the candidates, over this rank's rows."""
        columns = self.columns[candidates]
        return np.column_stack([columns @ columns.T, columns @ self.residual])

    def correlations(self, candidates: np.ndarray, surveyed: np.ndarray) -> np.ndarray:
        """Return the correlations between candidates."""
        lengths = self.lengths[candidates]
        return surveyed[:, :-1] / np.outer(lengths, lengths)

    def push(self, picked: np.ndarray, step: Step) -> np.ndarray:
        """Return the inner products with the residual, over this rank's rows."""
        return self.columns[picked] @ self.residual

    def pull(self, picked: np.ndarray, pushed: np.ndarray, step: Step) -> np.ndarray:
        """Change this rank's rows of the residual; return the changes of the variables."""
        changes = step(picked, pushed)
        moved = changes != 0
        self.residual -= changes[moved] @ self.columns[picked[moved]]
        return changes

    def products(self) -> tuple[float, float]:
        """Return r^T r and r^T y over all rows. Collective."""
        sums = [self.residual @ self.residual, self.residual @ self.target]
        squares, product = self._sum(np.array(sums))
        return float(squares), float(product)

    def steepest(self) -> float:
        """Return the largest absolute inner product of a column with r. Collective."""
        return float(np.abs(self._sum(self.columns @ self.residual)).max())


class Columns(Design):
    """Cut by columns: each rank has some variables, with all examples."""

    def _measure(self, intercept: bool) -> None:
        self.rows = len(self.residual)
        means = self.columns.sum(axis=1) / np.float64(self.rows) * intercept
        self.columns -= means[:, np.newaxis]
        self.target_mean = float(self.residual.sum() / np.float64(self.rows)) * intercept
        self.residual -= self.target_mean
        squares = np.einsum("ij,ij->i", self.columns, self.columns)
        owners = np.full(len(means), self.ranks.rank(), np.float64)
        sums = np.stack([means, squares, owners], axis=1)
        everyone = allgather(sums, name="scheduled.columns", process_set=self.ranks)
        self.means, self.squares = everyone[:, 0].copy(), everyone[:, 1].copy()
        self.owners = everyone[:, 2].astype(np.int64)
        self._first = int(np.searchsorted(self.owners, self.ranks.rank()))

    @staticmethod
    def describe(x: np.ndarray, y: np.ndarray) -> dict[str, object]:
        """Return the properties that must be equal on all ranks: those of `y`."""
        return {"number of rows of `x`": x.shape[0], "digest of `y`": digest([y])}

    def survey(self, candidates: np.ndarray) -> np.ndarray:
        """Return the candidates' columns, zeros for those of other ranks."""
        is_own, places = self._local_places(candidates)
        surveyed = np.zeros((len(candidates), self.rows + 1))
        surveyed[is_own, :-1] = columns = self.columns[places]
        surveyed[is_own, -1] = columns @ self.residual
        return surveyed

    def correlations(self, candidates: np.ndarray, surveyed: np.ndarray) -> np.ndarray:
        """Return the correlations between candidates."""
        columns = surveyed[:, :-1] / self.lengths[candidates][:, np.newaxis]
        return columns @ columns.T

    def push(self, picked: np.ndarray, step: Step) -> np.ndarray:
        """Return the changes of the residual and of the variables by this rank's steps."""
        is_own, places = self._local_places(picked)
        columns = self.columns[places]
        changes = np.zeros(len(picked))
        changes[is_own] = step(picked[is_own], columns @ self.residual)
        return np.concatenate([changes[is_own] @ columns, changes])

    def pull(self, picked: np.ndarray, pushed: np.ndarray, step: Step) -> np.ndarray:
        """Change the residual; return the changes of the variables."""
        self.residual -= pushed[: self.rows]
        return pushed[self.rows :]

    def products(self) -> tuple[float, float]:
        """Return r^T r and r^T y, which each rank has."""
        return float(self.residual @ self.residual), float(self.residual @ self.target)

    def steepest(self) -> float:
        """Return the largest absolute inner product of a column with r. Collective."""
        steepness = np.abs(self.columns @ self.residual).max(initial=0.0)
        return float(
            allreduce(np.array(steepness), Max, name="scheduled.steepest", process_set=self.ranks)
        )

    def _local_places(self, variables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which variables are this rank's, and their places in `columns`."""
        places = variables - self._first
        is_own = (places >= 0) & (places < len(self.columns))
        return is_own, places[is_own]


CUTS: dict[str, type[Design]] = {"rows": Rows, "columns": Columns}
"""By the name that users give."""
