"""The memory of which data are a rank's part, and of the order in which one process has them.

A part is recognized by its identity, a dataset made of it by its inputs. `keras.Model` warns where
`evaluate` or `predict` get such data without `ringar.callbacks.Distributed`, since their results
are then those of one rank.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Iterator
from typing import Any, Literal, TypeVar

from ringar import hooks
from ringar.job import log, place

Data = TypeVar("Data")

#: How the k-th elements of all ranks follow each other in one process: one by one, joined to one
#: batch part by part, or joined to one batch row by row.
Order = Literal["turn", "parts", "rows"]

_log = log.logger(__name__)
_parts: dict[int, tuple[weakref.ref[Any], Order]] = {}
_warned_methods: set[str] = set()

_REMEDIES = {
    "evaluate": "For those of all ranks pass callbacks=[ringar.callbacks.Distributed()].",
    "predict": "For those of all ranks call ringar.predict(model, data) with all of the data.",
}


def mark(part: Data, order: Order) -> Data:
    """Remember that `part`, data of any kind, is this rank's share; return it.

    Args:
        part: the share.
        order: the order of its elements among those of all ranks.
    """
    for leaf in _leaves(part):
        key = id(leaf)
        with contextlib.suppress(TypeError):  # of a class without weak references
            _parts[key] = weakref.ref(leaf, functools.partial(_forget, key)), order
    if "keras" in sys.modules:
        hooks.install("warnings about parts of data")
    return part


def is_part(data: Any) -> bool:
    """Return whether `data` contains the share of a rank, or is made of one."""
    return any(_is_marked(leaf) for leaf in _leaves(data))


def order_of(data: Any) -> Order:
    """Return the order of elements; "turn" for data that `ringar.data.shard` has not made."""
    is_batched = False
    while data is not None:
        if id(data) in _parts:
            _, order = _parts[id(data)]
            return "rows" if order == "turn" and is_batched else order
        is_batched |= "Batch" in type(data).__name__
        sources: list[Any] = list(getattr(data, "_inputs", list)())
        data = sources[0] if len(sources) == 1 else None
    return "turn"


def _forget(key: int, _: Any) -> None:
    _parts.pop(key, None)


def _is_marked(leaf: Any) -> bool:
    if id(leaf) in _parts:
        return True
    sources = getattr(leaf, "_inputs", None)  # of a tf.data.Dataset
    return callable(sources) and any(_is_marked(source) for source in sources())


def _leaves(data: Any) -> Iterator[Any]:
    if isinstance(data, dict):
        data = tuple(data.values())
    if isinstance(data, tuple | list):
        for value in data:
            yield from _leaves(value)
    elif data is not None:
        yield data


def watching(original: Any) -> Any:
    """Let a method of `keras.Model` look at its data."""
    signature = inspect.signature(original)

    def watched(self: Any, *args: Any, **options: Any) -> Any:
        name = original.__name__
        if name not in _warned_methods:
            arguments = signature.bind(self, *args, **options).arguments
            # The validation of `fit` has a keras.callbacks.CallbackList.
            callbacks = arguments.get("callbacks") or []
            is_alone = isinstance(callbacks, list | tuple) and not any(
                hasattr(callback, "take_ranks") for callback in callbacks
            )
            if is_alone and is_part((arguments.get("x"), arguments.get("y"))):
                _warned_methods.add(name)
                _tell(name)
        return original(self, *args, **options)

    return watched


def _tell(name: str) -> None:
    if place.rank() == 0:
        _log.warning(
            "%s was given data of ringar.data.shard, a part of the data: its result is that of "
            "this rank alone. %s",
            name,
            _REMEDIES[name],
        )
