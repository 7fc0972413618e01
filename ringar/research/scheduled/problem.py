"""`Problem`: the base class of problems for scheduled model parallelism.

A round of Kim et al. (EuroSys 2016, section 2) has three steps. `schedule` chooses blocks of
variables, one for each rank, that may change at the same time. `push` computes a rank's part of the
changes. `pull` applies the sum of all parts.

    round t         schedule -> push ----.                 .-> pull
                       ^                 |-> exchange -----|
    for round t + 1    |     survey -----'                 '-> sum of the surveys --.
                       '----------------------------- in round t + 1 --------------'

The data, which lie on all ranks, tell whether variables depend on each other. `survey` returns a
rank's part of the answer for the *next* round, and travels with the changes of this one. So a round
has one exchange, and scheduling waits for no message of its own. Its knowledge of the variables is
one round old, as in the pipelined scheduler of the paper (section 3).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import numpy as np

from ringar.collectives import Sum, grouped_allreduce
from ringar.job.process_sets import ProcessSet


class Problem(abc.ABC):
    """Describe a problem whose variables are updated in parallel, as a schedule says.

    Derive a class with `variables`, `schedule`, `push`, `pull` and `objective`. All ranks make the
    same schedule, since they make it from equal numbers: seeds, and what was exchanged. `run`
    compares the schedules of the ranks in every round.

    `schedule`, `survey`, `push` and `pull` compute on one rank and must not communicate.
    `exchange`, `objective` and `gap` are called on all ranks together and may use collectives. An
    exception in one of them on one rank ends the run on all.

    Attributes:
        variables: the number of variables, set before `run`.
        process_set: the ranks that solve the problem; None: all.

    Example:
    ```python
    class Mean(scheduled.Problem):
        variables = 3

        def __init__(self, rows):  # rows of this rank, (n, 3)
            self.rows, self.mean = rows, np.zeros(3)

        def schedule(self, number, surveyed):
            return np.array_split(np.arange(3), ringar.size())

        def push(self, blocks):
            return np.append(self.rows.sum(axis=0), len(self.rows))

        def pull(self, blocks, pushed):
            self.mean = pushed[:-1] / pushed[-1]

        def objective(self):
            return float(ringar.allreduce(np.square(self.rows - self.mean).sum(), ringar.Sum))
    ```
    """

    variables: int
    process_set: ProcessSet | None = None

    @abc.abstractmethod
    def schedule(self, number: int, surveyed: np.ndarray | None) -> Sequence[np.ndarray]:
        """Choose the variables of a round.

        Args:
            number: the round, from 0.
            surveyed: the sum of the ranks' surveys for this round; None if `survey` returns None.

        Returns:
            One block for each rank, in the order of the ranks: numbers of variables, which must be
            the same on all ranks. No variable is in two blocks. A block may be empty.
        """

    @abc.abstractmethod
    def push(self, blocks: Sequence[np.ndarray]) -> np.ndarray:
        """Compute this rank's part of the changes.

        Args:
            blocks: what `schedule` has returned.

        Returns:
            An array, of the same shape and dtype on all ranks unless `exchange` is overridden.
        """

    @abc.abstractmethod
    def pull(self, blocks: Sequence[np.ndarray], pushed: np.ndarray) -> None:
        """Apply the changes.

        Args:
            blocks: what `schedule` has returned.
            pushed: the sum of all ranks' pushes.
        """

    @abc.abstractmethod
    def objective(self) -> float:
        """Return the objective to minimize, the same number on all ranks."""

    def survey(self, number: int) -> np.ndarray | None:
        """Compute this rank's part of the data for `schedule`, one round ahead.

        Args:
            number: the round that it is for.

        Returns:
            An array, of the same shape and dtype on all ranks, or None, as here.
        """
        return None

    def exchange(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Exchange pushes and surveys: here, add them over all ranks.

        Args:
            arrays: the results of `push` and of `survey`, unless that is None.

        Returns:
            The arguments of `pull` and `schedule`.
        """
        return grouped_allreduce(
            arrays, Sum, name="scheduled.exchange", process_set=self.process_set
        )

    def gap(self, objectives: Sequence[float]) -> float:
        """Return the distance to the end, which `run` compares with its tolerance.

        Here it is the relative change of the objective between the last two evaluations. Override
        it where a bound of the distance to the optimum is known.

        Args:
            objectives: the objectives so far.
        """
        if len(objectives) < 2:
            return np.inf
        before, now = objectives[-2:]
        return abs(before - now) / max(abs(now), np.finfo(np.float64).tiny)

    def describe(self) -> dict[str, object]:
        """Return the settings that must be equal on all ranks: here, the class and `variables`."""
        kind = type(self)
        return {
            "problem": f"{kind.__module__}.{kind.__qualname__}",
            "`variables`": self.variables,
        }
