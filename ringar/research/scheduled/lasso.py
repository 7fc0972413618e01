"""`Lasso`: parallel coordinate descent whose variables are scheduled.

The objective is that of scikit-learn, |y - X b - b_0|^2 / (2 n) + alpha |b|_1. A step minimizes it
in one coordinate: with s = x_j^T x_j and the residual r,

    b_j <- S(x_j^T r + s b_j, n alpha) / s,        S(z, t) = sign(z) max(|z| - t, 0).

All variables of a round take this step at once (Kim et al., EuroSys 2016, section 2.1).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import partial

import numpy as np

from ringar.job.process_sets import ProcessSet, or_all
from ringar.research.scheduled.agreement import Agreement
from ringar.research.scheduled.designs import CUTS, Design
from ringar.research.scheduled.problem import Problem
from ringar.research.scheduled.rounds import Callback, run
from ringar.research.scheduled.schedulers import Dynamic, Scheduler


class LassoProblem(Problem):
    """Minimize the Lasso's objective.

    Args:
        design: the data.
        alpha: the weight of the 1-norm.
        scheduler: chooses the variables.
        process_set: the ranks.
    """

    def __init__(
        self,
        design: Design,
        alpha: float,
        scheduler: Scheduler,
        process_set: ProcessSet | None,
    ) -> None:
        self.process_set = process_set
        self.design, self.alpha, self.scheduler = design, alpha, scheduler
        self.variables = len(design.squares)
        self.coefficients = np.zeros(self.variables)
        scheduler.start(
            np.ones(self.variables),
            or_all(process_set).size(),
            owners=design.owners,
            excluded=design.constant,
        )
        self._next = np.empty(0, np.int64)
        self._before = np.empty(0)

    def survey(self, number: int) -> np.ndarray | None:
        """Propose candidates, and return this rank's part of their correlations."""
        self._next = self.scheduler.propose()
        self._before = self.coefficients[self._next]
        return self.design.survey(self._next) if self.scheduler.is_checked else None

    def schedule(self, number: int, surveyed: np.ndarray | None) -> list[np.ndarray]:
        """Pick from the candidates."""
        candidates = self._next
        if surveyed is None:
            return self.scheduler.pick(candidates, None)
        correlations = self.design.correlations(candidates, surveyed)
        changes = self._changes(candidates, self.design.slopes(surveyed), self._before)
        steps = np.abs(changes) * self.design.lengths[candidates]
        return self.scheduler.pick(candidates, correlations, steps)

    def push(self, blocks: Sequence[np.ndarray]) -> np.ndarray:
        """Return this rank's part of the steps."""
        return self.design.push(np.concatenate(blocks), self._step)

    def pull(self, blocks: Sequence[np.ndarray], pushed: np.ndarray) -> None:
        """Take the steps, and tell the scheduler how long they were."""
        picked = np.concatenate(blocks)
        changes = self.design.pull(picked, pushed, self._step)
        self.coefficients[picked] += changes
        self.scheduler.report(picked, np.abs(changes) * self.design.lengths[picked])

    def objective(self) -> float:
        """Return the objective."""
        return self._primal(self.design.products()[0])

    def gap(self, objectives: Sequence[float]) -> float:
        """Return the duality gap over the objective: no solution is lower by a larger share.

        The dual point is the residual, scaled until it is feasible.
        """
        squares, product = self.design.products()
        limit = self.design.rows * self.alpha
        steepest = self.design.steepest()
        scale = 1.0 if steepest <= limit else limit / steepest
        primal = self._primal(squares)
        dual = (scale * product - scale**2 * squares / 2) / self.design.rows
        return 0.0 if primal == 0 else (primal - dual) / primal

    def describe(self) -> dict[str, object]:
        """Return the settings that must be equal on all ranks."""
        return {
            **super().describe(), "`alpha`": self.alpha, "`scheduler`": self.scheduler.describe(),
        }  # fmt: skip

    def _primal(self, squares: float) -> float:
        penalty = self.alpha * float(np.abs(self.coefficients).sum())
        return squares / (2 * self.design.rows) + penalty

    def _step(self, variables: np.ndarray, products: np.ndarray) -> np.ndarray:
        return self._changes(variables, products, self.coefficients[variables])

    def _changes(
        self, variables: np.ndarray, products: np.ndarray, before: np.ndarray
    ) -> np.ndarray:
        """Return the steps of variables from `before`, given products with the residual."""
        squares = self.design.squares[variables]
        target = products + squares * before
        limit = self.design.rows * self.alpha
        return np.sign(target) * np.maximum(np.abs(target) - limit, 0) / squares - before


class Lasso:
    """Fit a linear model with an L1 penalty by scheduled coordinate descent over ranks.

    The objective is that of `sklearn.linear_model.Lasso`: the squared error over twice the number
    of rows, and `alpha` times the sum of the absolute coefficients. Arithmetic is in float64.

    Args:
        alpha: the weight of the penalty, positive.
        cut: "rows": each rank passes some rows of the data to `fit`, with all columns. "columns":
            each rank passes some columns, with all rows, and the whole target.
        scheduler: chooses the variables of a round; default
            `ringar.parallel.scheduled.Dynamic()`. A scheduler with `rho` never raises the
            objective.
        fit_intercept: whether to fit a constant, which is not penalized.
        tolerance: the fit ends when the duality gap is at most this share of the objective; None:
            after `rounds`.
        rounds: the largest number of rounds.
        every: the rounds between two evaluations; default: half of those that pick each variable
            once. An evaluation of the gap costs about as much as such rounds.
        process_set: the ranks that fit together; default all.

    Attributes:
        coef_: the coefficients of all columns, (columns,); with `cut="columns"` in the order of
            the ranks.
        intercept_: the constant.
        objectives_: the objective at each evaluation, first that of coefficients 0.
        rounds_: the number of rounds at each evaluation.
        dual_gap_: the duality gap at the end, in the unit of the objective.
        converged_: whether it is as small as `tolerance` asks; if not, rank 0 warns.

    All ranks have the same attributes. `fit` checks the arguments, not the constructor, so that a
    wrong argument on one rank is an error on all.

    Example:
    ```python
    model = scheduled.Lasso(alpha=0.1)
    rows = np.array_split(np.arange(len(x)), ringar.size())[ringar.rank()]
    model.fit(x[rows], y[rows])
    ```
    """

    coef_: np.ndarray
    intercept_: float
    objectives_: list[float]
    rounds_: list[int]
    dual_gap_: float
    converged_: bool

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        cut: str = "rows",
        scheduler: Scheduler | None = None,
        fit_intercept: bool = True,
        tolerance: float | None = 1e-7,
        rounds: int = 100_000,
        every: int | None = None,
        process_set: ProcessSet | None = None,
    ) -> None:
        self.alpha, self.cut, self.fit_intercept = alpha, cut, fit_intercept
        self.scheduler = scheduler if scheduler is not None else Dynamic()
        self.tolerance, self.rounds, self.every = tolerance, rounds, every
        self.process_set = process_set

    def fit(self, x: np.ndarray, y: np.ndarray, *, callbacks: Sequence[Callback] = ()) -> Lasso:
        """Fit the model. Collective.

        Args:
            x: this rank's rows or columns of the data, (rows, columns), dense and finite.
            y: the targets of its rows, or of all rows with `cut="columns"`, (rows,).
            callbacks: as for `ringar.parallel.scheduled.run`.

        Returns:
            The model itself.

        Raises:
            ValueError: on every rank, if an argument of a rank is out of range; if its data have
                wrong shapes or numbers, or do not fit those of the others; or if ranks have
                different arguments.
            FloatingPointError: on every rank, if updates without `rho` diverge.
            RankError: another rank has failed.
            NotInitializedError: before `ringar.init()`.
        """
        x, y = self._checked(x, y)
        agreement = Agreement("Lasso", self.process_set)
        problem = agreement.attempt_together(lambda: self._problem(x, y))
        agreement.settle("data")
        assert problem is not None  # or else `settle` has raised
        design = problem.design
        interval = self.every
        if interval is None:
            interval = max(1, problem.variables // self.scheduler.picks // 2)
        with np.errstate(over="ignore", invalid="ignore"):  # `run` looks at the objective
            history = run(
                problem, self.rounds, tolerance=self.tolerance, every=interval, callbacks=callbacks
            )
        gap = agreement.number("`gap`", partial(problem.gap, history.objectives))
        self.coef_ = problem.coefficients
        # No BLAS: its kernels round differently on unlike processors.
        self.intercept_ = float(design.target_mean - (design.means * self.coef_).sum())
        self.objectives_, self.rounds_ = history.objectives, history.rounds
        self.dual_gap_, self.converged_ = gap * history.objectives[-1], history.converged
        if self.tolerance is not None and not history.converged and design.ranks.rank() == 0:
            warnings.warn(
                f"Lasso has not converged: the duality gap is {gap:.1e} of the objective "
                f"after {history.rounds[-1]} rounds, tolerance={self.tolerance}.",
                stacklevel=2,
            )
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return predictions, (rows,), for rows of all columns, on this rank alone."""
        predicted: np.ndarray = np.asarray(x) @ self.coef_ + self.intercept_
        return predicted

    def _problem(self, x: np.ndarray, y: np.ndarray) -> LassoProblem:
        design = CUTS[self.cut](x, y, self.fit_intercept, self.process_set)
        return LassoProblem(design, float(self.alpha), self.scheduler, self.process_set)

    def _checked(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the data as arrays, if those of all ranks fit. Collective."""
        agreement = Agreement("Lasso", self.process_set)
        agreement.attempt(self._check_arguments)
        checked = agreement.attempt(lambda: _check_data(np.asarray(x), np.asarray(y)))
        agreement.settle("arguments and data")
        assert checked is not None  # or else `settle` has raised
        settings = {"`cut`": self.cut, "`fit_intercept`": self.fit_intercept}
        agreement.require(settings, "Make the same Lasso on every rank.")
        remedy = {
            "rows": "Give each rank whole rows: numpy.array_split(x, size)[rank].",
            "columns": "Give each rank whole columns, numpy.array_split(x, size, axis=1)[rank], "
            "and the whole `y`.",
        }[self.cut]
        agreement.require(CUTS[self.cut].describe(*checked), remedy)
        return checked

    def _check_arguments(self) -> None:
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"`alpha` must be positive and finite. Received: {self.alpha!r}")
        if self.cut not in CUTS:
            raise ValueError(f'`cut` must be "rows" or "columns". Received: {self.cut!r}')
        if not isinstance(self.scheduler, Scheduler):
            raise ValueError(
                "`scheduler` must be a ringar.parallel.scheduled.Scheduler, or None. "
                f"Received: {self.scheduler!r}"
            )
        self.scheduler.check()


def _check_data(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    for name, array in (("x", x), ("y", y)):
        if array.dtype.kind not in "fiub":
            raise ValueError(f"`{name}` must be a dense array of numbers. Received: {array.dtype}")
        if not np.isfinite(array).all():
            raise ValueError(f"`{name}` must be finite. Received: infinite values, or NaN")
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y):
        raise ValueError(
            "`x` must have the shape (rows, columns), and `y` (rows,). "
            f"Received: {x.shape} and {y.shape}"
        )
    return x, y
