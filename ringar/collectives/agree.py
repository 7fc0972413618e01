"""Agreement of ranks: `same` compares descriptions, `together` and `first` run work.

In one exchange every rank learns the values or the errors of all: either all ranks raise or none
does, and no rank waits for one that has failed. An error names the function that the user has
called. `except` catches it on all ranks or on none: where one rank raises a ValueError, the others
raise a RankError that is a ValueError, too.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ringar import errors
from ringar.collectives.objects import allgather_object, broadcast_object
from ringar.errors import MismatchError, RankError, RingarError
from ringar.job import place
from ringar.job.process_sets import ProcessSet, or_all

Result = TypeVar("Result")
Remedy = str | Callable[[str], str]
"""Advice, in sentences; or a function that returns it for the path of the value that differs."""

_NOTHING = "nothing"
_SHOWN = 8
_LENGTH = 400
_LINE = 120


def same(
    description: Mapping[str, Any],
    *,
    caller: str,
    remedy: Remedy,
    process_set: ProcessSet | None = None,
) -> None:
    """Raise on every rank if ranks describe themselves differently. Collective.

    Args:
        description: names and values, or further descriptions. Values are plain: numbers, texts,
            None, and sequences of them.
        caller: the public name of the function that the user has called.
        remedy: advice for the error.
        process_set: the ranks concerned; by default all.

    Raises:
        MismatchError: with the first path whose values differ, "optimizer.weight_decay" for
            example, and the values of all ranks.
    """
    ranks = or_all(process_set)
    if ranks.size() > 1:
        of_ranks = allgather_object(dict(description), name=caller, process_set=process_set)
        compare(of_ranks, caller=caller, remedy=remedy, ranks=ranks.ranks)


def compare(
    of_ranks: Sequence[Mapping[str, Any]],
    *,
    caller: str,
    remedy: Remedy,
    ranks: Sequence[int] | None = None,
) -> None:
    """Raise if gathered descriptions differ; every rank passes the same ones.

    Args:
        of_ranks: a description of each rank, as for `same`.
        caller: as for `same`.
        remedy: as for `same`.
        ranks: the ranks of the descriptions; by default all.

    Raises:
        MismatchError: as from `same`.
    """
    flat = [_flat(description) for description in of_ranks]
    ranks = range(len(flat)) if ranks is None else ranks
    for path in dict.fromkeys(itertools.chain.from_iterable(flat)):
        values = [description.get(path, _NOTHING) for description in flat]
        if not all(_equal(value, values[0]) for value in values):
            advice = remedy if isinstance(remedy, str) else remedy(path)
            raise MismatchError(
                f"rank {place.rank()} | {caller}: expected the same {path} on every rank; "
                f"received{groups(values, ranks)}{advice}"
            )


def groups(values: Sequence[Any], ranks: Sequence[int]) -> str:
    """Return each value with its ranks, for an error; the value of the most ranks comes first.

    Args:
        values: the values of ranks.
        ranks: these ranks.

    Returns:
        A part of a line, or a line for each value if they are long.
    """
    pairs: list[tuple[Any, list[int]]] = []
    for rank, value in zip(ranks, values, strict=True):
        members = next((members for key, members in pairs if _equal(value, key)), None)
        if members is None:
            pairs.append((value, [rank]))
        else:
            members.append(rank)
    pairs.sort(key=lambda group: -len(group[1]))  # stable
    texts = [f"{_text(value)} ({_ranks(members)})" for value, members in pairs[:_SHOWN]]
    if len(pairs) > _SHOWN:
        texts.append(f"and {len(pairs) - _SHOWN} further values")
    line = ", ".join(texts)
    return f" {line}. " if len(line) <= _LINE else "".join(f"\n  {text}" for text in texts) + "\n"


def together(
    function: Callable[[], Result],
    *,
    caller: str,
    deed: str = "to succeed",
    process_set: ProcessSet | None = None,
) -> list[Result]:
    """Run a function on every rank, and return all results; one rank's error is that of all.

    Collective, after the function. The function itself may communicate only before it can fail.

    Args:
        function: the work of each rank; its result can be pickled.
        caller: the public name of the function that the user has called.
        deed: the expected work, for errors on other ranks, such as "to predict its share".
        process_set: the ranks concerned; by default all.

    Raises:
        Exception: on a rank whose function has raised, its error. On the others a `RankError` that
            is also of this error's class, with the text and traceback of the first such rank.
    """
    ranks = or_all(process_set)
    result, packed, failure = _attempt(function)
    report = None if failure is None else Failure.of(failure)
    of_ranks = [(packed, report)]
    if ranks.size() > 1:
        of_ranks = allgather_object(of_ranks[0], name=caller, process_set=process_set)
    if failure is not None:
        raise failure
    for rank, (_, report) in zip(ranks.ranks, of_ranks, strict=True):
        if report is not None:
            raise report.on_another_rank(rank, caller, deed)
    return [
        result if rank == ranks.rank() else pickle.loads(text)
        for rank, (text, _) in enumerate(of_ranks)
    ]


def first(
    function: Callable[[], Result],
    *,
    caller: str,
    deed: str = "to succeed",
    process_set: ProcessSet | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Result:
    """Run a function on the first rank, and return its result, or raise its error, on all.

    Collective, after the function.

    Args:
        function: the work of the first rank; its result can be pickled.
        caller: the public name of the function that the user has called.
        deed: the expected work, for errors on other ranks, such as "to write 'a.keras'".
        process_set: the ranks concerned; by default all.
        meanwhile: the work of the other ranks.

    Raises:
        Exception: on the first rank its error, on the others a `RankError` as from `together`.
    """
    ranks = or_all(process_set)
    result: Any = None
    packed, failure = b"", None
    if ranks.rank() == 0:
        result, packed, failure = _attempt(function)
    else:
        meanwhile()
    report = None if failure is None else Failure.of(failure)
    if ranks.size() > 1:
        root = ranks.ranks[0]
        packed, report = broadcast_object(
            (packed, report), root, name=caller, process_set=process_set
        )
    if failure is not None:
        raise failure
    if report is not None:
        raise report.on_another_rank(ranks.ranks[0], caller, deed)
    return result if ranks.rank() == 0 else pickle.loads(packed)


@dataclass(frozen=True)
class Failure:
    """Describe an error to other ranks.

    Attributes:
        kind: the name of a class that other ranks have, too: of Python or of ringar.
        text: the class and the message.
        trace: the traceback.
    """

    kind: str
    text: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return the description of an error that was raised."""
        names = (
            kind.__name__ for kind in type(error).__mro__ if _shared_class(kind.__name__) is kind
        )
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return cls(next(names, "Exception"), f"{type(error).__name__}: {error}", trace.rstrip())

    def on_another_rank(self, rank: int, caller: str, deed: str) -> RingarError:
        """Return the error for ranks that wait for `rank`, which has failed."""
        kind = _rank_error(self.kind)
        return kind(
            f"rank {place.rank()} | {caller}: expected rank {rank} {deed}; received its error "
            f"{self.text}\nOn rank {rank}:\n{self.trace}"
        )


def _attempt(function: Callable[[], Any]) -> tuple[Any, bytes, Exception | None]:
    """Return the result, its pickle, and the error of a function, or of the pickling."""
    try:
        result = function()
        return result, pickle.dumps(result), None
    except Exception as error:
        return None, b"", error


def _shared_class(name: str) -> Any:
    return getattr(errors, name, None) or getattr(builtins, name, None)


@functools.cache
def _rank_error(kind: str) -> type[RingarError]:
    """Return the class of the error here for an error of class `kind` on another rank."""
    base = _shared_class(kind)
    if issubclass(base, RingarError):
        plain_class: type[RingarError] = base
        return plain_class
    # Some classes of errors print more than their text, or need several arguments.
    namespace = {"__module__": RankError.__module__, "__str__": lambda error: str(error.args[0])}
    try:
        error_class = type(RankError.__name__, (RankError, base), namespace)
        error_class("")
    except TypeError:
        return RankError
    return error_class


def _flat(description: Any, path: str = "") -> dict[str, Any]:
    """Return the values of a description by their paths."""
    if isinstance(description, Mapping):
        pairs = list(description.items())
    elif isinstance(description, list | tuple) and any(
        isinstance(value, Mapping | list | tuple) for value in description
    ):
        pairs = list(enumerate(description))
    else:
        return {path: description}
    flat: dict[str, Any] = {}
    for name, value in pairs:
        flat |= _flat(value, f"{path}.{name}" if path else str(name))
    return flat


def _equal(value: Any, other: Any) -> bool:
    return bool(value == other) or (value != value and other != other)


def _text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]}…"


def _ranks(ranks: Sequence[int]) -> str:
    """Return ranks as words: "rank 3", "ranks 0-2, 5"."""
    runs = [
        [rank for _, rank in run]
        for _, run in itertools.groupby(enumerate(sorted(ranks)), lambda pair: pair[1] - pair[0])
    ]
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(texts)}"
