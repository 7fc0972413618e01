"""The object that an executor makes on each rank, and whose functions it calls there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

rank = -1
"""The number of this rank."""

_objects: list[Any] = []  # one at most


def make(kind: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Make the object of this rank."""
    _objects[:] = [kind(*args, **kwargs)]


def make_and_call(recipe: Sequence[Any], function: Callable[[Any], Any]) -> Any:
    """Make the object of this rank, and call a function with it."""
    if recipe:
        make(*recipe)
    return call(function)


def call(function: Callable[[Any], Any], only_rank: int | None = None) -> Any:
    """Call a function with the object of this rank; None if it is for another rank only."""
    if only_rank not in (None, rank):
        return None
    if not _objects:
        raise RuntimeError("`execute` expected an object on each rank; pass `executable_cls`")
    return function(_objects[0])
