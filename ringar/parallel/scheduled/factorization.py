"""`MatrixFactorization`: stochastic gradient descent on blocks that share no row and no column.

The rows of a matrix are cut into P blocks, and so are its columns. In round t rank p works on row
block p and column block (p + t) mod P, so that the P blocks of a round share no row and no column:
ranks change different factors, and P ranks compute what one process computes that does the blocks
one after the other. P rounds are an epoch.

    round 0        round 1        round 2        rank p's block of a matrix, P = 3
    0 . .          . 0 .          . . 0
    . 1 .          . . 1          1 . .
    . . 2          2 . .          . 2 .

This is the static schedule of Kim et al. (EuroSys 2016), the strata of Gemulla et al. (KDD 2011,
"DSGD"). A rank keeps the factors of its rows. Those of a column block move on to the next rank
after each round: with m columns, k factors and 8 bytes, a rank sends 8 k m / P bytes per round.
Blocks are balanced by their ratings.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ringar.collectives import Sum, allgather, allreduce, alltoall
from ringar.job.process_sets import ProcessSet, or_all
from ringar.parallel.scheduled.agreement import Agreement
from ringar.parallel.scheduled.balance import balance
from ringar.parallel.scheduled.problem import Problem
from ringar.parallel.scheduled.rounds import Callback, run
from ringar.parallel.scheduled.waves import Waves, arrange


@dataclasses.dataclass(frozen=True)
class Ratings:
    """Hold known elements of a matrix.

    Attributes:
        rows: their rows, int64, (ratings,).
        columns: their columns.
        values: float64, (ratings,).
        shape: the rows and columns of the matrix.
    """

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    shape: tuple[int, int]


class Factorization(Problem):
    """Factorize a matrix: its variables are its rows, then its columns.

    Args:
        ratings: those that this rank has read, any share of all.
        settings: the arguments of `MatrixFactorization`.
        process_set: the ranks.
    """

    def __init__(
        self, ratings: Ratings, settings: Settings, process_set: ProcessSet | None
    ) -> None:
        self.process_set, self.settings = process_set, settings
        self.ranks = or_all(process_set)
        self.rank, self.size = self.ranks.rank(), self.ranks.size()
        self.shape = ratings.shape
        self.variables = sum(ratings.shape)
        counts = [
            np.bincount(places, minlength=count)
            for places, count in zip((ratings.rows, ratings.columns), self.shape, strict=True)
        ]
        self.counts = self._sum(np.concatenate(counts))
        total = self._sum(np.array([ratings.values.sum(), float(len(ratings.values))]))
        self.mean = float(total[0] / total[1])
        rows = self.shape[0]
        self.row_blocks = balance(self.counts[:rows], self.size)
        self.column_blocks = balance(self.counts[rows:], self.size)
        self.waves = self._arranged(self._own(ratings))
        self.row_factors = self._drawn(0, self.rank)
        self.column_factors = self._drawn(1, self.rank)
        self.round = 0

    def schedule(self, number: int, surveyed: np.ndarray | None) -> list[np.ndarray]:
        """Return the rows of each rank, and the columns that it has in this round."""
        columns = [self.column_blocks[(rank + number) % self.size] for rank in range(self.size)]
        return [
            np.concatenate([rows, self.shape[0] + own])
            for rows, own in zip(self.row_blocks, columns, strict=True)
        ]

    def push(self, blocks: Sequence[np.ndarray]) -> np.ndarray:
        """Descend on this rank's block; return the factors of its columns."""
        block = (self.rank + self.round) % self.size
        settings = self.settings
        rate = settings.learning_rate / (1 + settings.decay * (self.round // self.size))
        self.waves[block].descend(
            self.row_factors, self.column_factors, rate, settings.regularization
        )
        return self.column_factors

    def exchange(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Send the factors of the columns to the rank that has them in the next round."""
        (factors,) = arrays
        rows_for = np.zeros(self.size, np.int64)
        rows_for[(self.rank - 1) % self.size] = len(factors)
        received, _ = alltoall(
            factors, rows_for, name="scheduled.exchange", process_set=self.process_set
        )
        return [received]

    def pull(self, blocks: Sequence[np.ndarray], pushed: np.ndarray) -> None:
        """Take the factors of the columns of the next round."""
        self.column_factors = pushed
        self.round += 1

    def objective(self) -> float:
        """Return half the squared errors, and the penalty of the factors of every rating."""
        columns = self.gathered()[1]
        error = sum(
            waves.squared_error(self.row_factors, columns[block])
            for waves, block in zip(self.waves, self.column_blocks, strict=True)
        )
        # Each rank adds the penalties of its rows, and of the columns of one block.
        for places, factors in (
            (self.row_blocks[self.rank], self.row_factors),
            (self.shape[0] + self.column_blocks[self.rank], columns[self.column_blocks[self.rank]]),
        ):
            squares = np.square(factors).sum(axis=1)
            error += self.settings.regularization * float(self.counts[places] @ squares)
        return float(self._sum(np.array(error / 2)))

    def gathered(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the factors of all rows and of all columns. Collective."""
        found = []
        held = self.column_blocks[(self.rank + self.round) % self.size]
        for count, places, factors in (
            (self.shape[0], self.row_blocks[self.rank], self.row_factors),
            (self.shape[1], held, self.column_factors),
        ):
            whole = np.empty((count, self.settings.factors))
            options = {"name": "scheduled.factors", "process_set": self.process_set}
            whole[allgather(places, **options)] = allgather(factors, **options)
            found.append(whole)
        return found[0], found[1]

    def describe(self) -> dict[str, object]:
        """Return what must be equal on all ranks."""
        return {**super().describe(), "settings": self.settings}

    def _sum(self, values: np.ndarray) -> np.ndarray:
        return allreduce(values, Sum, name="scheduled.counts", process_set=self.process_set)

    def _own(self, ratings: Ratings) -> Ratings:
        """Return the ratings of this rank's rows, ordered by row and column, from all ranks."""
        owners = np.empty(self.shape[0], np.int64)
        for rank, rows in enumerate(self.row_blocks):
            owners[rows] = rank
        to = owners[ratings.rows]
        order = np.argsort(to, kind="stable")
        # Numbers of rows and columns are exact in float64.
        table = np.stack([ratings.rows, ratings.columns, ratings.values], axis=1)[order]
        received, _ = alltoall(
            table,
            np.bincount(to, minlength=self.size),
            name="scheduled.ratings",
            process_set=self.process_set,
        )
        rows, columns, values = received[np.lexsort(received.T[::-1])].T
        return Ratings(rows.astype(np.int64), columns.astype(np.int64), values, self.shape)

    def _arranged(self, ratings: Ratings) -> list[Waves]:
        """Return the waves of each of this rank's blocks, in a random order of the ratings."""
        block_of = np.empty(self.shape[1], np.int64)
        place_of = np.empty(self.shape[1], np.int64)
        for block, columns in enumerate(self.column_blocks):
            block_of[columns], place_of[columns] = block, np.arange(len(columns))
        rows = np.searchsorted(self.row_blocks[self.rank], ratings.rows)
        columns, blocks = place_of[ratings.columns], block_of[ratings.columns]
        random = np.random.default_rng([self.settings.seed, 2, self.rank])
        arranged = []
        for block in range(self.size):
            chosen = random.permutation(np.flatnonzero(blocks == block))
            values = ratings.values[chosen] - self.mean
            arranged.append(arrange(rows[chosen], columns[chosen], values))
        return arranged

    def _drawn(self, axis: int, block: int) -> np.ndarray:
        """Return the initial factors of a block of rows (axis 0) or columns (1)."""
        blocks = (self.row_blocks, self.column_blocks)[axis]
        random = np.random.default_rng([self.settings.seed, axis, block])
        factors = self.settings.factors
        return random.normal(scale=factors**-0.5, size=(len(blocks[block]), factors))


@dataclasses.dataclass(frozen=True)
class Settings:
    """Hold the arguments of `MatrixFactorization` that its problem needs."""

    factors: int
    regularization: float
    learning_rate: float
    decay: float
    seed: int


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

    All ranks have the same attributes.

    Raises:
        ValueError: an argument is out of range.

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
        for name, whole in (("factors", factors), ("epochs", epochs)):
            if not isinstance(whole, int) or whole < 1:
                raise ValueError(f"`{name}` must be a positive whole number. Received: {whole!r}")
        for name, number, least in (
            ("regularization", regularization, 0.0),
            ("learning_rate", learning_rate, np.finfo(np.float64).tiny),
            ("decay", decay, 0.0),
        ):
            if not (math.isfinite(number) and number >= least):
                kind = "positive" if least else "not negative"
                raise ValueError(f"`{name}` must be {kind}. Received: {number!r}")
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
            ValueError: on every rank, if a rank's elements have wrong shapes or numbers, if the
                matrix has fewer rows or columns than there are ranks, or if ranks have different
                arguments.
            FloatingPointError: on every rank, if the descent diverges.
            RankError: another rank has failed.
            NotInitializedError: before `ringar.init()`.
        """
        ratings = self._checked(rows, columns, values, shape)
        problem = Factorization(ratings, self.settings, self.process_set)
        history = run(
            problem,
            self.epochs * problem.size,
            tolerance=self.tolerance,
            every=problem.size,
            callbacks=callbacks,
        )
        self.row_factors_, self.column_factors_ = problem.gathered()
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
        given = (np.asarray(rows), np.asarray(columns), np.asarray(values))
        ratings = agreement.attempt(lambda: _check_ratings(*given, shape, size))
        agreement.settle("data")
        assert ratings is not None  # or else `settle` has raised
        described = {"`shape`": ratings.shape, "settings": self.settings, "`epochs`": self.epochs}
        agreement.require(described, "Make the same MatrixFactorization, for the same matrix.")
        count = np.array(len(ratings.values), np.int64)
        options = {"name": "scheduled.elements", "process_set": self.process_set}
        if not int(allreduce(count, Sum, **options)):
            raise ValueError("there must be a known element on some rank. Received: none on any")
        return ratings


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
