"""The messages to ranks of `ringar.run` or an executor, and their outcomes: results or errors."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ringar.errors import PeerLostError, RankError
from ringar.launchers.function.process import Launcher
from ringar.launchers.function.rendezvous import Outcome

#: The launcher's message that names the rank whose failure ended the job.
_CAUSE = re.compile(r"rank (\d+) of \d+ ")


def message(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, object] | None
) -> bytes:
    """Return the message by which a rank calls a function.

    Raises:
        TypeError: it cannot be called, or something cannot be pickled.
    """
    import cloudpickle

    if not callable(function):
        raise TypeError(f"ringar.run: expected a function, received {function!r}")
    try:
        call = bytes(cloudpickle.dumps((function, tuple(args), dict(kwargs or {}))))
        return pickle.dumps((sys.path, call))
    except Exception as error:
        raise TypeError(
            f"ringar.run: expected a function and arguments that can be pickled: {error}; make "
            "objects such as locks, files and compiled functions inside the function"
        ) from error


def results(arrived: Mapping[int, Outcome], size: int, launcher: Launcher | None) -> list[Any]:
    """Return the results of all ranks.

    Args:
        arrived: the outcomes by rank, in the order of their arrival.
        size: the number of ranks.
        launcher: the launcher, if it has ended.

    Raises:
        RankError: a rank has no result, or one that cannot be read.
        Exception: the error of the rank that failed first.
    """
    outcomes = [arrived.get(rank) for rank in range(size)]
    has_failed = any(outcome is None or outcome.trace for outcome in outcomes)
    if has_failed or (launcher and launcher.code):
        _raise_first(arrived, outcomes, launcher)
    return [_unpickled(rank, outcome) for rank, outcome in enumerate(outcomes)]


def of_elastic_job(arrived: Mapping[int, Outcome], launcher: Launcher) -> list[Any]:
    """Return the results of the ranks that have come to the end, in the order of their last ranks.

    Args:
        arrived: the outcomes by slot, in the order of their arrival.
        launcher: the launcher, which has ended.

    Raises:
        RankError: the job could not go on.
        Exception: the error of one rank, if all ranks have ended with errors.
    """
    if launcher.code == 0:
        done = [outcome for outcome in arrived.values() if not outcome.trace]
        # Ranks of an earlier world come behind ranks of the last one with the same number.
        done.sort(key=lambda outcome: (outcome.place[1], -outcome.place[0]))
        return [_unpickled(outcome.place[1], outcome) for outcome in done]
    why = launcher.last or f"the elastic job has ended with exit code {launcher.code}"
    for outcome in arrived.values():
        error = _error_of(outcome) if outcome.trace else None
        # An error about the loss of a rank, or the end of the job, is a consequence, not the cause.
        if error is not None and not isinstance(error, RankError | PeerLostError):
            raise error from RankError(
                f"{why}; rank {outcome.place[1]} had failed:\n{outcome.trace}"
            )
    unread = [outcome.trace for outcome in arrived.values() if outcome.trace and not outcome.value]
    raise RankError("\n".join([why, *unread[:1]]))


def _error_of(outcome: Outcome) -> Exception | None:
    """Return the error of a rank; None if only its traceback has come."""
    try:
        error: Exception | None = pickle.loads(outcome.value) if outcome.value else None
    except Exception:  # a class that only ranks can import
        return None
    return error


def _raise_first(
    arrived: Mapping[int, Outcome], outcomes: Sequence[Outcome | None], launcher: Launcher | None
) -> NoReturn:
    """Raise the error of the rank that the launcher calls the cause, or of the first to report."""
    size = len(outcomes)
    errors = [rank for rank, outcome in arrived.items() if outcome.trace]
    last, code = (launcher.last, launcher.code) if launcher else ("", 0)
    match = _CAUSE.match(last)
    first = int(match[1]) if match else next(iter(errors), None)
    if first is not None and first in errors:
        outcome = arrived[first]
        cause = RankError(f"rank {first} of {size} failed:\n{outcome.trace}")
        error = _error_of(outcome)
        if error is None:
            raise cause
        raise error from cause
    silent = ", ".join(str(rank) for rank, outcome in enumerate(outcomes) if outcome is None)
    raise RankError(
        last
        or f"expected the results of {size} ranks, but rank {silent} ended without one "
        f"(the exit code of the job is {code})"
    )


def _unpickled(rank: int, outcome: Outcome | None) -> Any:
    assert outcome is not None
    try:
        return pickle.loads(outcome.value)
    except Exception as error:
        raise RankError(
            f"expected a result of rank {rank} that can be unpickled here: {error}; return "
            "numbers, NumPy arrays or containers of them"
        ) from error
