"""Errors that concern all ranks: a fault that one rank finds ends the run on every rank.

Ranks compute by themselves between two exchanges. Before each exchange they compare one number
each, a digest, or a mark that a rank has failed, so that no rank waits for one that will not come.

A step may be an exchange itself, such as the objective of a user's problem. A rank that fails in it
goes on to the comparison, where the others are still in the collectives of the step. All of them
get a `MismatchError` then, and meet in a second comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from ringar.collectives import allgather, allgather_object
from ringar.collectives.agree import Failure, same
from ringar.collectives.call import Call
from ringar.collectives.digest import digest
from ringar.errors import DeadlineError, MismatchError, PeerLostError
from ringar.job.process_sets import ProcessSet, or_all

T = TypeVar("T")

FAILED = -1
"""In the place of a digest, which is not negative."""


class Agreement:
    """Run steps on each rank, and raise on all ranks where one has failed or differs."""

    def __init__(self, subject: str, process_set: ProcessSet | None) -> None:
        self._call = Call("allgather", name=f"scheduled.{subject}")
        self._ranks = or_all(process_set)
        self._error: Exception | None = None
        self._may_differ = False  # other ranks may be in a collective of a step

    def attempt(self, step: Callable[[], T]) -> T | None:
        """Return the result of a step; None if it has failed, or an earlier one has."""
        if self._error is None:
            try:
                return step()
            except Exception as error:
                self._error = error
        return None

    def attempt_together(self, step: Callable[[], T]) -> T | None:
        """Return the result of a step that all ranks take, and that may use collectives.

        Raises:
            DeadlineError: a rank has not arrived in time in a collective of the step.
            PeerLostError: a rank was lost.
        """
        self._may_differ = True
        result = self.attempt(step)
        if isinstance(self._error, (DeadlineError, PeerLostError)):
            raise self._error
        return result

    def number(self, where: str, step: Callable[[], float]) -> float:
        """Return the number that a step of all ranks returns: that of the first rank. Collective.

        Ranks on unlike processors may differ in the last digits, and would come to different
        conclusions.

        Raises:
            RankError: another rank has failed; a ValueError, too, if that has raised one.
            MismatchError: the numbers differ by more than rounding.
        """
        numbers = self.attempt_together(lambda: float(step()))
        self.settle(where)
        everyone = allgather(
            np.array([numbers], np.float64), name=self._call.name, process_set=self._ranks
        )
        if not np.allclose(everyone, everyone[0], rtol=1e-6, atol=1e-12, equal_nan=True):
            received = ", ".join(
                f"{value!r} (rank {q})" for q, value in enumerate(everyone.tolist())
            )
            raise MismatchError(
                self._call.refusal(
                    f"the same {where} on every rank", received, "Add it up over all ranks."
                )
            )
        return float(everyone[0])

    def settle(self, where: str, arrays: Iterable[np.ndarray] = (), remedy: str = "") -> None:
        """Raise on every rank if one has failed, or if ranks have other arrays. Collective.

        Args:
            where: the step of the ranks, for the error.
            arrays: must be equal on all ranks.
            remedy: advice for ranks with different arrays.

        Raises:
            RankError: another rank has failed; a ValueError, too, if that has raised one.
            MismatchError: arrays differ.
        """
        everyone = self._compare(FAILED if self._error is not None else digest(arrays))
        self._may_differ = False
        if (everyone == FAILED).any():
            self._fail(where)
        if (everyone != everyone[0]).any():
            received = ", ".join(f"{value:08x} (rank {q})" for q, value in enumerate(everyone))
            raise MismatchError(
                self._call.refusal(f"the same {where} on every rank", f"digests {received}", remedy)
            )

    def _compare(self, number: int) -> np.ndarray:
        """Return the numbers of all ranks."""
        try:
            return self._gather(number)
        except MismatchError as error:
            if not self._may_differ:
                raise
            self._error = self._error or error
        return self._gather(FAILED)

    def _gather(self, number: int) -> np.ndarray:
        numbers = np.array([number], np.int64)
        return allgather(numbers, name=self._call.name, process_set=self._ranks)

    def _fail(self, where: str) -> None:
        """Raise this rank's error, or that of the first rank that has one. Collective.

        A mismatch is the consequence of another rank's error, if there is one.
        """
        error, self._error = self._error, None
        report = None if error is None else Failure.of(error)
        is_own = report is not None and not _is_mismatch(report)
        of_ranks = allgather_object(report, name=self._call.name, process_set=self._ranks)
        failures = [
            (rank, failure)
            for rank, failure in zip(self._ranks.ranks, of_ranks, strict=True)
            if failure is not None
        ]
        failures.sort(key=lambda pair: _is_mismatch(pair[1]))
        rank, failure = failures[0]
        if error is not None and (is_own or _is_mismatch(failure)):
            raise error
        raise failure.on_another_rank(rank, f"{self._call.name}, {where}", "to succeed")

    def require(self, described: Mapping[str, object], remedy: str) -> None:
        """Raise on every rank if descriptions differ. Collective.

        Args:
            described: values by name, which must be equal on all ranks.
            remedy: advice for the error.

        Raises:
            MismatchError: with the first name whose values differ.
        """
        same(described, caller=self._call.name, remedy=remedy, process_set=self._ranks)


def _is_mismatch(failure: Failure) -> bool:
    return failure.kind == MismatchError.__name__
