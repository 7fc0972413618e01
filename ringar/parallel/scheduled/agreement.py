"""Errors that concern all ranks: what one rank finds wrong ends the run on every rank.

Ranks compute by themselves between two exchanges. Before each exchange they compare one number
each, a digest, or a mark that a rank has failed, so that no rank waits for one that will not come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from ringar.collectives import allgather, allgather_object
from ringar.collectives.call import Call
from ringar.collectives.digest import digest
from ringar.errors import RankError
from ringar.job.process_sets import ProcessSet, or_all

T = TypeVar("T")

FAILED = -1
"""In the place of a digest, which is not negative."""


class Agreement:
    """Run steps on each rank, and raise on all ranks where one has failed or differs."""

    def __init__(self, what: str, process_set: ProcessSet | None) -> None:
        self._call = Call("allgather", name=f"scheduled.{what}")
        self._what = what
        self._ranks = or_all(process_set)
        self._error: Exception | None = None

    def attempt(self, step: Callable[[], T]) -> T | None:
        """Return the result of a step; None if it has failed, or an earlier one has."""
        if self._error is None:
            try:
                return step()
            except Exception as error:
                self._error = error
        return None

    def settle(self, where: str, arrays: Iterable[np.ndarray] = (), remedy: str = "") -> None:
        """Raise on every rank if one has failed, or if ranks have other arrays. Collective.

        Args:
            where: what the ranks did, for the error.
            arrays: must be equal on all ranks.
            remedy: advice for ranks with different arrays.

        Raises:
            ValueError: a rank has raised one, or arrays differ.
            RankError: another rank has failed in another way.
        """
        own = FAILED if self._error is not None else digest(arrays)
        everyone = allgather(
            np.array([own], np.int64), name=self._call.name, process_set=self._ranks
        )
        if (everyone == FAILED).any():
            self._fail(where)
        if (everyone != everyone[0]).any():
            received = ", ".join(f"{value:08x} (rank {q})" for q, value in enumerate(everyone))
            raise ValueError(
                self._call.refusal(f"the same {where} on every rank", f"digests {received}", remedy)
            )

    def _fail(self, where: str) -> None:
        """Raise this rank's error, or that of the first rank that has one. Collective."""
        error, self._error = self._error, None
        own = None
        if error is not None:
            own = (type(error).__name__, str(error), isinstance(error, ValueError))
        found = allgather_object(own, name=self._call.name, process_set=self._ranks)
        if error is not None:
            raise error
        failures = [(rank, *each) for rank, each in enumerate(found) if each is not None]
        rank, kind, text, is_value_error = failures[0]
        message = f"rank {rank} | scheduled.{self._what}, {where}: {kind}: {text}"
        raise ValueError(message) if is_value_error else RankError(message)

    def require(self, described: Mapping[str, object], remedy: str) -> None:
        """Raise on every rank if descriptions differ. Collective.

        Args:
            described: values by name, which must be equal on all ranks.
            remedy: advice for the error.

        Raises:
            ValueError: with the first name whose values differ.
        """
        everyone = allgather_object(dict(described), name=self._call.name, process_set=self._ranks)
        for key in dict.fromkeys(name for each in everyone for name in each):
            values = [each.get(key) for each in everyone]
            if any(value != values[0] for value in values):
                received = ", ".join(f"{value} (rank {q})" for q, value in enumerate(values))
                raise ValueError(
                    self._call.refusal(f"the same {key} on every rank", received, remedy)
                )
