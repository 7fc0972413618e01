"""Blocks of a matrix that share no row and no column, and the descent on them.

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
from collections.abc import Sequence

import numpy as np

from ringar.collectives import Sum, allgather, allreduce, alltoall
from ringar.job.process_sets import ProcessSet, or_all
from ringar.research.scheduled.balance import balance
from ringar.research.scheduled.problem import Problem
from ringar.research.scheduled.waves import Waves, arrange


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


@dataclasses.dataclass(frozen=True)
class Settings:
    """Hold the arguments of `MatrixFactorization` that its problem needs."""

    factors: int
    regularization: float
    learning_rate: float
    decay: float
    seed: int


class Factorization(Problem):
    """Factorize a matrix: its variables are its rows, then its columns.

    Args:
        ratings: the ratings that this rank has read, any share of all.
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
        self.waves = self._waves_of_blocks(self._ratings_of_rank(ratings))
        self.row_factors = self._initial_factors(0, self.rank)
        self.column_factors = self._initial_factors(1, self.rank)
        self.round = 0

    def schedule(self, number: int, surveyed: np.ndarray | None) -> list[np.ndarray]:
        """Return the rows of each rank, and the columns that it has in this round."""
        return [
            np.concatenate([rows, self.shape[0] + columns])
            for rows, columns in zip(self.row_blocks, self._columns_of_round(number), strict=True)
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
        columns = self.all_columns()
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

    def all_rows(self) -> np.ndarray:
        """Return the factors of all rows. Collective."""
        return self._gather(self.row_blocks, self.row_factors)

    def all_columns(self) -> np.ndarray:
        """Return the factors of all columns. Collective."""
        return self._gather(self._columns_of_round(self.round), self.column_factors)

    def describe(self) -> dict[str, object]:
        """Return the settings that must be equal on all ranks."""
        return {**super().describe(), "settings": self.settings}

    def _columns_of_round(self, number: int) -> list[np.ndarray]:
        """Return the columns that each rank has in a round."""
        return [self.column_blocks[(rank + number) % self.size] for rank in range(self.size)]

    def _gather(self, blocks: list[np.ndarray], factors: np.ndarray) -> np.ndarray:
        """Return the factors of the blocks of all ranks, given those of this rank's block."""
        gathered = allgather(factors, name="scheduled.factors", process_set=self.process_set)
        all_factors = np.empty_like(gathered)
        all_factors[np.concatenate(blocks)] = gathered
        return all_factors

    def _sum(self, values: np.ndarray) -> np.ndarray:
        return allreduce(values, Sum, name="scheduled.counts", process_set=self.process_set)

    def _ratings_of_rank(self, ratings: Ratings) -> Ratings:
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

    def _waves_of_blocks(self, ratings: Ratings) -> list[Waves]:
        """Return the waves of each of this rank's blocks, in a random order of the ratings."""
        block_of = np.empty(self.shape[1], np.int64)
        place_of = np.empty(self.shape[1], np.int64)
        for block, columns in enumerate(self.column_blocks):
            block_of[columns], place_of[columns] = block, np.arange(len(columns))
        rows = np.searchsorted(self.row_blocks[self.rank], ratings.rows)
        columns, blocks = place_of[ratings.columns], block_of[ratings.columns]
        random = np.random.default_rng([self.settings.seed, 2, self.rank])
        waves = []
        for block in range(self.size):
            chosen = random.permutation(np.flatnonzero(blocks == block))
            values = ratings.values[chosen] - self.mean
            waves.append(arrange(rows[chosen], columns[chosen], values))
        return waves

    def _initial_factors(self, axis: int, block: int) -> np.ndarray:
        """Return the initial factors of a block of rows (axis 0) or columns (1)."""
        blocks = (self.row_blocks, self.column_blocks)[axis]
        random = np.random.default_rng([self.settings.seed, axis, block])
        factors = self.settings.factors
        return random.normal(scale=factors**-0.5, size=(len(blocks[block]), factors))
