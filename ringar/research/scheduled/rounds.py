"""`run`: the rounds of a problem on all ranks, with checks that the ranks do the same."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ringar.collectives import Max, allreduce
from ringar.job.process_sets import or_all
from ringar.research.scheduled.agreement import Agreement
from ringar.research.scheduled.problem import Problem

Blocks = Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Progress:
    """Tell a callback how far a run has come.

    Attributes:
        round: the number of rounds done.
        objective: the objective after them.
    """

    round: int
    objective: float


@dataclasses.dataclass
class History:
    """Tell how a run went.

    Attributes:
        rounds: after how many rounds the objective was evaluated, first 0.
        objectives: its values.
        gap: the last result of `Problem.gap`; infinite without a tolerance.
        converged: whether the gap came below the tolerance.
    """

    rounds: list[int] = dataclasses.field(default_factory=list)
    objectives: list[float] = dataclasses.field(default_factory=list)
    gap: float = math.inf
    converged: bool = False


Callback = Callable[[Progress], object]


def run(
    problem: Problem,
    rounds: int,
    *,
    tolerance: float | None = None,
    every: int = 1,
    callbacks: Sequence[Callback] = (),
) -> History:
    """Run a problem for some rounds, or until it has converged. Collective.

    Args:
        problem: the problem, of the same class on all ranks.
        rounds: the largest number of rounds.
        tolerance: the run ends when `problem.gap` is at most this. None: after `rounds`.
        every: the rounds between two evaluations of the objective, and of the gap.
        callbacks: called with a `ringar.parallel.scheduled.Progress` after each evaluation. A
            rank may have none; those on all ranks may use collectives. The run ends on all ranks
            when one of them returns True.

    Returns:
        The history, the same on all ranks.

    Raises:
        ValueError: on every rank, if an argument is wrong; if ranks have different arguments,
            problems or schedules; if there is not one block for each rank; if a block has a
            variable that does not exist, or that is in another block, too; if the objective, or the
            gap, is not the same number on all ranks.
        FloatingPointError: on every rank, if the objective is no longer finite.
        RankError: a method of the problem or a callback has failed on another rank.
        MismatchError: on every rank, if their pushes or surveys differ in shape or dtype.
        NotInitializedError: before `ringar.init()`.
    """
    return _Run(problem, rounds, tolerance, every, callbacks).run()


class _Run:
    """Hold the state of a run."""

    def __init__(
        self,
        problem: Problem,
        rounds: int,
        tolerance: float | None,
        interval: int,
        callbacks: Sequence[Callback],
    ) -> None:
        self.problem, self.rounds, self.interval = problem, rounds, interval
        self.tolerance, self.callbacks = tolerance, callbacks
        self.ranks = or_all(problem.process_set)
        self.size = self.ranks.size()
        self.history = History()
        self.agreement = Agreement("run", problem.process_set)

    def run(self) -> History:
        self._check()
        surveyed = self._first_survey()
        if self._ends(0):
            return self.history
        for number in range(self.rounds):
            surveyed = self._round(number, surveyed)
            done = number + 1
            if (done % self.interval == 0 or done == self.rounds) and self._ends(done):
                break
        return self.history

    def _check(self) -> None:
        self.agreement.attempt(self._check_arguments)
        self.agreement.settle("arguments")
        settings = {
            "`rounds`": self.rounds, "`every`": self.interval, "`tolerance`": self.tolerance,
        }  # fmt: skip
        described = self.agreement.attempt(self.problem.describe)
        self.agreement.settle("`describe`")
        self.agreement.require(
            {**(described or {}), **settings}, "Make the same problem, and call `run` alike."
        )
        self.calls_back = self._on_any_rank(bool(self.callbacks))

    def _check_arguments(self) -> None:
        for name, value, least in (("rounds", self.rounds, 0), ("every", self.interval, 1)):
            if not isinstance(value, int) or value < least:
                raise ValueError(
                    f"`{name}` must be a whole number of at least {least}. Received: {value!r}"
                )
        if self.tolerance is not None and not self.tolerance >= 0:
            raise ValueError(
                f"`tolerance` must be None or not negative. Received: {self.tolerance!r}"
            )
        count = getattr(self.problem, "variables", None)
        if not isinstance(count, (int, np.integer)) or count < 1:
            raise ValueError(
                f"{type(self.problem).__name__}.variables must be the number of variables, at "
                f"least 1. Received: {count!r}"
            )

    def _first_survey(self) -> np.ndarray | None:
        first = self.agreement.attempt(partial(self._survey, 0))
        self.agreement.settle("`survey`")
        self.agreement.require(
            {"`survey`": "None" if first is None else "an array"},
            "Return an array on every rank, or None on every rank.",
        )
        if first is None:
            return None
        exchanged = self.agreement.attempt_together(partial(self._exchange, [first]))
        return exchanged[0] if exchanged else None

    def _round(self, number: int, surveyed: np.ndarray | None) -> np.ndarray | None:
        """Run a round, and return the survey for the next one."""
        problem, attempt = self.problem, self.agreement.attempt
        blocks = attempt(partial(self._schedule, number, surveyed)) or []
        survey = attempt(partial(self._survey, number + 1))
        pushed = attempt(partial(self._push, blocks))
        self.agreement.settle(
            f"schedule of round {number}",
            blocks,
            "Make `schedule` from equal numbers: the same seed, and what was exchanged.",
        )
        assert pushed is not None  # or else `settle` has raised
        arrays = [pushed, *([] if survey is None else [survey])]
        exchanged = self.agreement.attempt_together(partial(self._exchange, arrays))
        if exchanged is None:  # the next `settle` raises
            return None
        pushed, *rest = exchanged
        attempt(partial(problem.pull, blocks, pushed))
        return rest[0] if rest else None

    def _schedule(self, number: int, surveyed: np.ndarray | None) -> Blocks:
        blocks = [np.asarray(block) for block in self.problem.schedule(number, surveyed)]
        check_blocks(blocks, self.problem.variables, self.size, number)
        return [block.astype(np.int64) for block in blocks]

    def _exchange(self, arrays: list[np.ndarray]) -> Sequence[np.ndarray]:
        exchanged = self.problem.exchange(arrays)
        if len(exchanged) != len(arrays):
            raise ValueError(
                f"`exchange` must return as many arrays as it gets, {len(arrays)}. "
                f"Received: {len(exchanged)}"
            )
        return exchanged

    def _survey(self, number: int) -> np.ndarray | None:
        surveyed = self.problem.survey(number)
        return None if surveyed is None else _as_array("survey", surveyed)

    def _push(self, blocks: Blocks) -> np.ndarray:
        return _as_array("push", self.problem.push(blocks))

    def _ends(self, done: int) -> bool:
        """Evaluate; return whether the run ends."""
        self.agreement.settle("`exchange` and `pull`")
        history, number = self.history, self.agreement.number
        objective = number("`objective`", self.problem.objective)
        history.rounds.append(done)
        history.objectives.append(objective)
        if not math.isfinite(objective):
            raise FloatingPointError(
                f"rank {self.ranks.rank()} | scheduled.run: the objective is {objective} after "
                f"{done} rounds. Variables that depend on each other may have changed at once "
                "(schedule them with a smaller `rho`), or a learning rate is too large."
            )
        if self.tolerance is not None:
            history.gap = number("`gap`", partial(self.problem.gap, history.objectives))
            history.converged = history.gap <= self.tolerance
        stop = False
        if self.calls_back:
            call = partial(self._call_back, Progress(done, objective))
            ends = self.agreement.attempt_together(call)
            self.agreement.settle("callbacks")
            stop = self._on_any_rank(bool(ends))
        return history.converged or stop

    def _on_any_rank(self, flag: bool) -> bool:
        value = np.array(flag, np.int64)
        return bool(allreduce(value, Max, name="scheduled.any", process_set=self.ranks))

    def _call_back(self, progress: Progress) -> bool:
        answers = [callback(progress) for callback in self.callbacks]  # all are called
        return True in answers


def _as_array(method: str, result: object) -> np.ndarray:
    """Return the result of a method of the problem, which must be an array."""
    if not isinstance(result, (np.ndarray, np.generic)):
        raise ValueError(f"`{method}` must return a NumPy array. Received: {type(result).__name__}")
    return np.asarray(result)


def check_blocks(blocks: Blocks, variables: int, ranks: int, number: int) -> None:
    """Check that blocks are a schedule.

    Args:
        blocks: numbers of variables, one array for each rank.
        variables: the number of variables.
        ranks: the number of ranks.
        number: the round, for the error.

    Raises:
        ValueError: they are not.
    """
    if len(blocks) != ranks:
        raise ValueError(
            f"`schedule` must return one block for each of the {ranks} ranks. "
            f"Received: {len(blocks)} blocks in round {number}"
        )
    shapes = [block.shape for block in blocks if block.ndim != 1]
    if shapes:
        raise ValueError(
            f"`schedule` must return blocks of one dimension. Received: a block of shape "
            f"{shapes[0]} in round {number}"
        )
    kinds = {block.dtype for block in blocks if block.size and block.dtype.kind not in "iu"}
    if kinds:
        raise ValueError(
            f"`schedule` must return whole numbers. Received: {kinds.pop()} in round {number}"
        )
    union = np.concatenate(blocks)
    if union.size and (union.min() < 0 or union.max() >= variables):
        raise ValueError(
            f"`schedule` must return numbers of variables, from 0 to {variables - 1}. "
            f"Received: {union.min()} to {union.max()} in round {number}"
        )
    numbers, counts = np.unique(union, return_counts=True)
    if (counts > 1).any():
        variable = int(numbers[counts > 1][0])
        places = [rank for rank, block in enumerate(blocks) if variable in block]
        raise ValueError(
            "`schedule` must return blocks without a common variable. Received: variable "
            f"{variable} in the blocks of ranks {places} in round {number}"
        )
