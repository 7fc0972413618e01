"""Work of the first rank or of all, whose failure on one rank is an error on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringar.collectives import allgather_object, broadcast_object
from ringar.errors import RankError
from ringar.job import place
from ringar.job.process_sets import ProcessSet, or_all


def on_first_rank(
    action: Callable[[], Any],
    name: str,
    what: str,
    process_set: ProcessSet | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Any:
    """Run `action` on the first rank, and return its result on all ranks. Collective.

    Args:
        action: a function whose result can be pickled.
        name: the name of the exchange, in errors and timelines.
        what: the deed, for the error of the other ranks: "to write 'a.keras'", for example.
        process_set: the ranks concerned; by default all.
        meanwhile: what the other ranks do.

    Raises:
        OSError: on the other ranks, if `action` has raised; the first rank raises its own error.
    """
    ranks = or_all(process_set)
    result, failure = None, None
    if ranks.rank() == 0:
        result, failure = _try(action)
    else:
        meanwhile()
    said = _text_of(failure)
    if ranks.size() > 1:
        root = ranks.ranks[0]
        result, said = broadcast_object((result, said), root, name=name, process_set=process_set)
    if failure is not None:
        raise failure
    if said:
        raise OSError(
            f"rank {ranks.rank()} | {name}: expected rank {ranks.ranks[0]} {what}, "
            f"received its error {said}; see there"
        )
    return result


def on_every_rank(
    action: Callable[[], Any], name: str, what: str, process_set: ProcessSet | None = None
) -> list[Any]:
    """Run `action` on every rank, and return the results of all ranks. Collective.

    Args:
        action: a function whose result can be pickled.
        name: the name of the exchange, in errors and timelines.
        what: the deed, for the error of the other ranks: "to predict its share", for example.
        process_set: the ranks concerned; by default all.

    Raises:
        RankError: on the other ranks, if `action` has raised on one; that rank raises its own.
    """
    ranks = or_all(process_set)
    result, failure = _try(action)
    of_ranks = allgather_object((result, _text_of(failure)), name=name, process_set=process_set)
    if failure is not None:
        raise failure
    for rank, (_, said) in zip(ranks.ranks, of_ranks, strict=True):
        if said:
            raise RankError(
                f"rank {place.rank()} | {name}: expected rank {rank} {what}, received its error "
                f"{said}; see there"
            )
    return [result for result, _ in of_ranks]


def _try(action: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return action(), None
    except Exception as error:
        return None, error


def _text_of(failure: Exception | None) -> str:
    return f"{type(failure).__name__}: {failure}" if failure is not None else ""
