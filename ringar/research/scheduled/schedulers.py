"""Schedulers: which variables change in the next round, and on which rank.

`Dynamic` is that of Kim et al. (EuroSys 2016, section 2.2) and of Lee et al. (arXiv:1312.5766):

1. propose candidates, several times as many as needed, with a probability by their last step;
2. keep those that are independent of each other (`independent.py`);
3. share them out to the ranks so that all have about the same work.

In the paper the length of a variable's step is known only after the step. Here candidates are
surveyed for step 2 anyway, and one more number for each tells how far it would move. Step 2 goes
through the candidates in this order.

`RoundRobin` and `Random` draw candidates otherwise. Without `rho` they leave out step 2: they are
the unscheduled parallel updates to compare with.

A round's candidates are proposed before the changes of the round before it are known, so that their
correlations can be computed meanwhile. All ranks hold the same scheduler: it draws from a seed, and
learns what all ranks know. No rank asks another one.
"""

from __future__ import annotations

import abc
import math

import numpy as np

from ringar.research.scheduled.balance import balance
from ringar.research.scheduled.independent import Independent


class Scheduler(abc.ABC):
    """Choose variables round by round; the base class of schedulers.

    Args:
        picks: the largest number of variables of a round, over all ranks.
        rho: the largest absolute correlation between two variables of a round; None: no
            dependency check.
        candidates: how many candidates are checked for a round; default 4 x `picks`. Without
            `rho`, all candidates are picked, and `candidates` must be None.
        seed: of what is drawn, the same on all ranks.
    """

    def __init__(
        self,
        picks: int = 32,
        *,
        rho: float | None = None,
        candidates: int | None = None,
        seed: int = 0,
    ) -> None:
        self.picks, self.rho, self.seed = picks, rho, seed
        self._candidates = candidates

    @property
    def candidates(self) -> int:
        """How many candidates are proposed for a round."""
        if self._candidates is not None:
            return self._candidates
        return self.picks if self.rho is None else 4 * self.picks

    def check(self) -> None:
        """Refuse arguments that are out of range.

        `start` calls this, and `Lasso.fit` before all ranks compare theirs. A constructor that
        raises on one rank would leave the others waiting.

        Raises:
            ValueError: an argument is out of range.
        """
        picks, rho, candidates = self.picks, self.rho, self._candidates
        if not isinstance(picks, int) or picks < 1:
            raise ValueError(f"`picks` must be a positive whole number. Received: {picks!r}")
        if rho is not None and not 0 <= rho <= 1:
            raise ValueError(
                f"`rho` must be from 0 to 1, or None for no dependency check. Received: {rho!r}"
            )
        if rho is None and candidates is not None:
            raise ValueError("`candidates` must be None without `rho`: all would be picked")
        if candidates is not None and not (isinstance(candidates, int) and candidates >= picks):
            raise ValueError(
                "`candidates` must be a whole number of at least `picks`. "
                f"Received: candidates={candidates!r}, picks={picks}"
            )

    @property
    def is_checked(self) -> bool:
        """Whether `pick` needs the correlations of the candidates."""
        return self.rho is not None

    def start(
        self,
        costs: np.ndarray,
        ranks: int,
        *,
        owners: np.ndarray | None = None,
        excluded: np.ndarray | None = None,
    ) -> None:
        """Begin a run.

        Args:
            costs: the work of updating each variable, (variables,).
            ranks: the number of ranks.
            owners: the rank that must update each variable, (variables,); None: any rank may.
            excluded: marks variables that never change, bool, (variables,).

        Raises:
            ValueError: an argument of the constructor is out of range, or all variables are
                excluded.
        """
        self.check()
        self._costs, self._ranks, self._owners = np.asarray(costs, np.float64), ranks, owners
        self._random = np.random.default_rng(self.seed)
        usable = np.ones(len(self._costs), bool) if excluded is None else ~excluded
        self._usable = np.flatnonzero(usable)
        if not self._usable.size:
            raise ValueError("there must be a variable to update. Received: all are excluded")
        self._begin(ranks, owners)

    def _begin(self, ranks: int, owners: np.ndarray | None) -> None:  # noqa: B027
        """Prepare a strategy for a run."""

    @abc.abstractmethod
    def propose(self) -> np.ndarray:
        """Return candidates for the next round, in the order in which they should be picked."""

    def pick(
        self,
        candidates: np.ndarray,
        correlations: np.ndarray | None,
        steps: np.ndarray | None = None,
    ) -> list[np.ndarray]:
        """Choose from candidates, and share them out to the ranks.

        Args:
            candidates: the result of `propose`.
            correlations: between them, (candidates, candidates); None without `rho`.
            steps: how far each would have moved when it was proposed, (candidates,), in the unit of
                `report`; None: not known.

        Returns:
            The variables of each rank.
        """
        independent = None
        if self.rho is not None:
            if correlations is None or correlations.shape != (len(candidates),) * 2:
                raise ValueError(
                    "`correlations` must be a matrix of all candidates, since `rho` is not None"
                )
            independent = Independent(correlations, self.rho)
        # A rank that must update its own variables gets its share of the work, and no more.
        room = np.full(self._ranks, np.inf)
        if self._owners is not None:
            room[:] = self._costs[candidates].mean() * -(-self.picks // self._ranks)
        picked: list[int] = []
        for place, variable in enumerate(candidates):
            owner = 0 if self._owners is None else int(self._owners[variable])
            if len(picked) == self.picks or room[owner] <= 0:
                continue
            if independent is None or independent.take(place):
                picked.append(int(variable))
                room[owner] -= self._costs[variable]
        self._note(picked)
        return self._shares(np.array(picked, np.int64))

    def report(self, variables: np.ndarray, changes: np.ndarray) -> None:
        """Learn by how much variables have changed.

        Args:
            variables: the variables picked in the last round, (n,).
            changes: their absolute changes, (n,), in a unit that is the same for all.
        """
        return  # most learn nothing

    def describe(self) -> str:
        """Return what must be equal on all ranks."""
        return (
            f"{type(self).__name__}(picks={self.picks}, rho={self.rho}, "
            f"candidates={self.candidates}, seed={self.seed})"
        )

    def _note(self, picked: list[int]) -> None:
        """Learn which candidates were picked."""
        return

    def _shares(self, picked: np.ndarray) -> list[np.ndarray]:
        if self._owners is not None:
            owners = self._owners[picked]
            return [picked[owners == rank] for rank in range(self._ranks)]
        return [picked[items] for items in balance(self._costs[picked], self._ranks)]


class Dynamic(Scheduler):
    """Pick variables by their steps, and check that they are independent.

    At first each variable is a candidate once, in a random order. Then a share `explore` of the
    candidates are those that have waited longest, and the others are drawn with a probability by
    the square of their last step, seen or taken: a step lowers an objective by about the square of
    its length. (Kim et al. add a constant to the step, by which any variable is drawn now and then.
    A queue comes to each variable sooner than chance does.) Of the candidates, those with the
    longest steps are picked. A variable that was not seen for more rounds than there are variables,
    divided by `explore`, comes first: none waits for ever. Where one variable fits a round, and
    steps are known only of those picked, this takes a share `explore` of the rounds.

    Args:
        picks: the largest number of variables of a round, over all ranks.
        rho: the largest absolute correlation between two variables of a round; None: no
            dependency check.
        candidates: how many candidates are checked for a round; default 4 x `picks`.
        explore: the share of candidates that have waited longest, above 0 and at most 1.
        seed: of what is drawn, the same on all ranks.
    """

    def __init__(
        self,
        picks: int = 32,
        *,
        rho: float | None = 0.5,
        candidates: int | None = None,
        explore: float = 0.3,
        seed: int = 0,
    ) -> None:
        super().__init__(picks, rho=rho, candidates=candidates, seed=seed)
        self.explore = explore

    def check(self) -> None:
        """Refuse arguments that are out of range; see `Scheduler.check`."""
        super().check()
        if not 0 < self.explore <= 1:
            raise ValueError(
                f"`explore` must be above 0, and at most 1. Received: {self.explore!r}"
            )

    def _begin(self, ranks: int, owners: np.ndarray | None) -> None:
        count = len(self._costs)
        self._squares = np.zeros(count)
        self._round = 0
        self._is_under_way = np.zeros(count, bool)
        # The round in which a variable's step was last seen; negative, in a random order, at first.
        self._seen_in = self._random.permutation(count) - count

    def propose(self) -> np.ndarray:
        """Return candidates: variables that are due, then others by waiting time and last step."""
        is_under_way = self._is_under_way[self._usable]
        idle, under_way = self._usable[~is_under_way], self._usable[is_under_way]
        waiting = self._waiting(idle)
        # Due are variables that were never seen, and those that have waited long for others on
        # which they depend. If they waited less, they would take all rounds where one fits a round.
        longest = math.ceil(len(self._usable) / self.explore)
        urgent = int((self._seen_in[waiting] < max(0, self._round - longest)).sum())
        drawable = idle[~np.isin(idle, waiting[:urgent])]
        draws = self._draw(drawable, self.candidates - max(urgent, self._explored()))
        waiting = waiting[~np.isin(waiting, draws)][: self.candidates - len(draws)]
        rest = self._draw(under_way, len(under_way))
        rest = np.concatenate([rest, under_way[~np.isin(under_way, rest)]])
        rest = rest[: self.candidates - len(waiting) - len(draws)]
        # Few may be drawn, where few have moved: waiting variables get their share, and no more.
        mixed = _interleave(waiting[urgent:], draws, self.explore)
        return np.concatenate([waiting[:urgent], mixed, rest])

    def pick(
        self,
        candidates: np.ndarray,
        correlations: np.ndarray | None,
        steps: np.ndarray | None = None,
    ) -> list[np.ndarray]:
        """Choose from candidates, the longest steps first; see `Scheduler.pick`."""
        if steps is None:
            return super().pick(candidates, correlations)
        # Variables that have moved since have done their steps. They come last.
        has_moved = self._is_under_way[candidates]
        self._squares[candidates[~has_moved]] = np.square(steps[~has_moved])
        self._seen_in[candidates] = self._round + 1
        order = np.lexsort((-self._squares[candidates], has_moved))
        if correlations is not None:
            correlations = correlations[np.ix_(order, order)]
        return super().pick(candidates[order], correlations)

    def report(self, variables: np.ndarray, changes: np.ndarray) -> None:
        """Learn by how much variables have changed."""
        self._squares[variables] = np.square(changes)

    def describe(self) -> str:
        """Return what must be equal on all ranks."""
        return f"{super().describe()[:-1]}, explore={self.explore})"

    def _explored(self) -> int:
        return math.ceil(self.explore * self.candidates)

    def _waiting(self, variables: np.ndarray) -> np.ndarray:
        """Return the variables that have waited longest, enough for all candidates."""
        seen_in = self._seen_in[variables]
        count = min(self.candidates * 2, len(variables))
        if count < len(variables):
            longest = _least(seen_in, count)
            variables, seen_in = variables[longest], seen_in[longest]
        return variables[np.argsort(seen_in, kind="stable")]

    def _draw(self, variables: np.ndarray, count: int) -> np.ndarray:
        """Draw without replacement: the least of exponential times with the squares as rates."""
        squares = self._squares[variables]
        variables, squares = variables[squares > 0], squares[squares > 0]
        count = min(max(count, 0), len(variables))
        if not count:
            return np.empty(0, np.int64)
        times = self._random.standard_exponential(len(variables)) / squares
        if count < len(times):
            least = _least(times, count)
            variables, times = variables[least], times[least]
        return variables[np.argsort(times, kind="stable")]

    def _note(self, picked: list[int]) -> None:
        self._round += 1
        self._seen_in[picked] = self._round
        self._is_under_way[:] = False
        self._is_under_way[picked] = True


def _least(values: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the least values, of equal ones the first.

    `np.argpartition` takes any of the equal ones, and which ones depends on the processor. Ranks on
    unlike processors must choose alike.
    """
    greatest = np.partition(values, count - 1)[count - 1]
    below, equal = np.flatnonzero(values < greatest), np.flatnonzero(values == greatest)
    return np.concatenate([below, equal[: count - len(below)]])


def _interleave(first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
    """Merge two arrays so that each part of the result has this share of the first, if it can."""
    places = [(np.arange(len(first)) + 0.5) / share, (np.arange(len(second)) + 0.5) / (1 - share)]
    order = np.argsort(np.concatenate(places), kind="stable")
    merged: np.ndarray = np.concatenate([first, second])[order]
    return merged


class RoundRobin(Scheduler):
    """Take one variable after the other, again and again.

    With `rho`, a candidate that depends on one picked before it waits for the next round. Where
    each variable belongs to a rank, it takes one of each rank in turn, so that all have work.
    """

    def _begin(self, ranks: int, owners: np.ndarray | None) -> None:
        self._queue = self._usable
        if owners is not None:
            place_at_owner = np.empty(len(self._queue), np.int64)
            for rank in range(ranks):
                is_own = owners[self._queue] == rank
                place_at_owner[is_own] = np.arange(is_own.sum())
            self._queue = self._queue[np.argsort(place_at_owner, kind="stable")]

    def propose(self) -> np.ndarray:
        """Return the variables that have waited longest."""
        return self._queue[: self.candidates]

    def _note(self, picked: list[int]) -> None:
        head, tail = self._queue[: self.candidates], self._queue[self.candidates :]
        was_picked = np.isin(head, picked)
        self._queue = np.concatenate([head[~was_picked], tail, head[was_picked]])


class Random(Scheduler):
    """Draw variables evenly."""

    def propose(self) -> np.ndarray:
        """Return variables drawn evenly, without replacement."""
        count = min(self.candidates, len(self._usable))
        return self._random.choice(self._usable, count, replace=False)
