"""`MatrixFactorization`: stochastic gradient descent on blocks that share no row and no column.

`strata.py` says how the ranks divide the work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ringar.collectives import Sum, allreduce
from ringar.job.process_sets import ProcessSet, or_all
from ringar.research.scheduled.agreement import Agreement
from ringar.research.scheduled.rounds import Callback, run
from ringar.research.scheduled.strata import Factorization, Ratings, Settings


class MatrixFactorization:
    """Factorize a matrix, of which some elements are known, on all ranks at once.

    An element is modeled as m + w h, where m is the mean of all known ones, and w and h are the
    factors of its row and column. Stochastic gradient descent minimizes half the squared errors
    plus, for each known element, `regularization` / 2 x (|w|^2 + |h|^2). The ranks work on blocks
    that share no row and no column, which move on round after round. Arithmetic is in float64.

    Results depend on the seed and on the number of ranks, since that makes the order of the
    elements, but not on which rank passes which elements.

    Args:
        factors: the length of a row's or column's vector of factors.
        regularization: the weight of the squared factors.
        learning_rate: the length of a step, in the first epoch.
        decay: in epoch e, from 0, the rate is `learning_rate` / (1 + `decay` e).
        epochs: how often each element is used.
        tolerance: the fit ends earlier when the objective changes by at most this share of it in
            an epoch; None: never.
        seed: of the initial factors, and of the order of the elements within a block.
        process_set: the ranks that fit together; default all.

    Attributes:
        row_factors_: (rows, factors).
        column_factors_: (columns, factors).
        mean_: the mean of all known elements.
        objectives_: the objective at first and after each epoch.

    All ranks have the same attributes. `fit` checks the arguments, not the constructor, so that a
    wrong argument on one rank is an error on all.

    Example:
    ```python
    model = scheduled.MatrixFactorization(factors=8)
    model.fit(users, films, stars, shape=(users_in_all, films_in_all))  # this rank's ratings
    model.predict(users[:10], films[:10])
    ```
    """

    row_factors_: np.ndarray
    column_factors_: np.ndarray
    mean_: float
    objectives_: list[float]

    def __init__(
        self,
        factors: int = 8,
        *,
        regularization: float = 0.02,
        learning_rate: float = 0.02,
        decay: float = 0.0,
        epochs: int = 20,
        tolerance: float | None = None,
        seed: int = 0,
        process_set: ProcessSet | None = None,
    ) -> None:
        self.settings = Settings(factors, regularization, learning_rate, decay, seed)
        self.epochs, self.tolerance, self.process_set = epochs, tolerance, process_set

    def fit(
        self,
        rows: np.ndarray,
        columns: np.ndarray,
        values: np.ndarray,
        shape: tuple[int, int],
        *,
        callbacks: Sequence[Callback] = (),
    ) -> MatrixFactorization:
        """Fit the factors. Collective.

        Args:
            rows: the rows of the elements that this rank passes, whole numbers, (elements,). Each
                element is passed by one rank, no matter which.
            columns: their columns.
            values: the elements.
            shape: the rows and columns of the whole matrix, at least one for each rank.
            callbacks: as for `ringar.parallel.scheduled.run`, called after each epoch.

        Returns:
            The model itself.

        Raises:
            ValueError: on every rank, if an argument of a rank is out of range; if its elements
                have wrong shapes or numbers; if the matrix has fewer rows or columns than there are
                ranks; or if ranks have different arguments.
            FloatingPointError: on every rank, if the descent diverges.
            RankError: another rank has failed.
            NotInitializedError: before `ringar.init()`.
        """
        ratings = self._checked(rows, columns, values, shape)
        agreement = Agreement("MatrixFactorization", self.process_set)
        problem = agreement.attempt_together(
            lambda: Factorization(ratings, self.settings, self.process_set)
        )
        agreement.settle("data")
        assert problem is not None  # or else `settle` has raised
        with np.errstate(over="ignore", invalid="ignore"):  # `run` looks at the objective
            history = run(
                problem,
                self.epochs * problem.size,
                tolerance=self.tolerance,
                every=problem.size,
                callbacks=callbacks,
            )
        self.row_factors_, self.column_factors_ = problem.all_rows(), problem.all_columns()
        self.mean_, self.objectives_ = problem.mean, history.objectives
        return self

    def predict(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return predicted elements, (elements,), on this rank alone.

        Args:
            rows: their rows, (elements,).
            columns: their columns.
        """
        w, h = self.row_factors_[rows], self.column_factors_[columns]
        predicted: np.ndarray = self.mean_ + np.einsum("ij,ij->i", w, h)
        return predicted

    def _checked(
        self,
        rows: np.ndarray,
        columns: np.ndarray,
        values: np.ndarray,
        shape: tuple[int, int],
    ) -> Ratings:
        """Return the ratings, if those of all ranks fit. Collective."""
        agreement = Agreement("MatrixFactorization", self.process_set)
        size = or_all(self.process_set).size()
        agreement.attempt(lambda: _check_arguments(self.settings, self.epochs))
        ratings = agreement.attempt(
            lambda: _check_ratings(
                np.asarray(rows), np.asarray(columns), np.asarray(values), shape, size
            )
        )
        agreement.settle("arguments and data")
        assert ratings is not None  # or else `settle` has raised
        described = {"`shape`": ratings.shape, "settings": self.settings, "`epochs`": self.epochs}
        agreement.require(described, "Make the same MatrixFactorization, for the same matrix.")
        count = np.array(len(ratings.values), np.int64)
        name = "scheduled.elements"
        if not int(allreduce(count, Sum, name=name, process_set=self.process_set)):
            raise ValueError("there must be a known element on some rank. Received: none on any")
        return ratings


def _check_arguments(settings: Settings, epochs: int) -> None:
    for name, count in (("factors", settings.factors), ("epochs", epochs)):
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"`{name}` must be a positive whole number. Received: {count!r}")
    for name, number, least in (
        ("regularization", settings.regularization, 0.0),
        ("learning_rate", settings.learning_rate, np.finfo(np.float64).tiny),
        ("decay", settings.decay, 0.0),
    ):
        if not (math.isfinite(number) and number >= least):
            kind = "positive" if least else "not negative"
            raise ValueError(f"`{name}` must be {kind}. Received: {number!r}")


def _check_ratings(
    rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int], size: int
) -> Ratings:
    if len(shape) != 2 or not all(isinstance(n, (int, np.integer)) and n >= size for n in shape):
        raise ValueError(
            "`shape` must be the numbers of rows and columns, at least one of each for each of the "
            f"{size} ranks. Received: {shape!r}"
        )
    if values.ndim != 1 or not (rows.shape == columns.shape == values.shape):
        raise ValueError(
            "`rows`, `columns` and `values` must have one dimension and one length. "
            f"Received: {rows.shape}, {columns.shape} and {values.shape}"
        )
    for name, places, count in (("rows", rows, shape[0]), ("columns", columns, shape[1])):
        if places.size and places.dtype.kind not in "iu":
            raise ValueError(f"`{name}` must be whole numbers. Received: {places.dtype}")
        if places.size and (places.min() < 0 or places.max() >= count):
            raise ValueError(
                f"`{name}` must be from 0 to {count - 1}, as `shape` says. "
                f"Received: {places.min()} to {places.max()}"
            )
    if values.dtype.kind not in "fiub" or not np.isfinite(values).all():
        raise ValueError(f"`values` must be finite numbers. Received: {values.dtype}, or NaN in it")
    return Ratings(
        rows.astype(np.int64),
        columns.astype(np.int64),
        values.astype(np.float64),
        (int(shape[0]), int(shape[1])),
    )
