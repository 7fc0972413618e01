"""Work of the first rank, whose result or failure is that of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringar.collectives import broadcast_object
from ringar.job.process_sets import ProcessSet, or_all


def on_first_rank(
    action: Callable[[], Any], name: str, what: str, process_set: ProcessSet | None = None
) -> Any:
    """Run `action` on the first rank, and return its result on all ranks. Collective.

    Args:
        action: a function whose result can be pickled.
        name: the name of the exchange, in errors and timelines.
        what: the deed, for the error of the other ranks: "to write 'a.keras'", for example.
        process_set: the ranks concerned; by default all.

    Raises:
        OSError: on the other ranks, if `action` has raised; the first rank raises its own error.
    """
    ranks = or_all(process_set)
    result: Any = None
    failure: BaseException | None = None
    if ranks.rank() == 0:
        try:
            result = action()
        except Exception as error:
            failure = error
    said = failure and f"{type(failure).__name__}: {failure}"
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
