"""The memory of which data are a part: `evaluate` and `predict` on a part have numbers of a rank.

Parts are known by their identity, and what `tf.data` makes of a part by its inputs. `keras.Model`
warns where such data arrive without `ringar.callbacks.Distributed`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Iterator
from typing import Any, TypeVar

from ringar.job import log, place

Data = TypeVar("Data")

_log = log.logger(__name__)
_parts: dict[int, weakref.ref[Any]] = {}
_told: set[str] = set()

_REMEDIES = {
    "evaluate": "For those of all ranks pass callbacks=[ringar.callbacks.Distributed()].",
    "predict": "For those of all ranks call ringar.predict(model, data) with all of the data.",
}


def mark(part: Data) -> Data:
    """Remember that `part`, data of any kind, is this rank's share; return it."""
    for leaf in _leaves(part):
        key = id(leaf)
        try:
            _parts[key] = weakref.ref(leaf, lambda _, key=key: _parts.pop(key, None))
        except TypeError:
            continue  # of a class without weak references
    _install()
    return part


def is_part(data: Any) -> bool:
    """Return whether `data` contains the share of a rank, or is made of one."""
    return any(_is_marked(leaf) for leaf in _leaves(data))


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


def _install() -> None:
    """Let `keras.Model` look at its data, if Keras is imported."""
    keras = sys.modules.get("keras")
    if keras is None or hasattr(keras.Model.evaluate, "_ringar"):
        return
    for name in _REMEDIES:
        setattr(keras.Model, name, _watched(getattr(keras.Model, name)))


def _watched(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def watched(self: Any, *args: Any, **options: Any) -> Any:
        name = original.__name__
        if name not in _told:
            given = signature.bind(self, *args, **options).arguments
            # The validation of `fit` has a keras.callbacks.CallbackList.
            callbacks = given.get("callbacks") or []
            is_alone = isinstance(callbacks, list | tuple) and not any(
                hasattr(callback, "take_ranks") for callback in callbacks
            )
            if is_alone and is_part((given.get("x"), given.get("y"))):
                _told.add(name)
                _tell(name)
        return original(self, *args, **options)

    watched._ringar = True  # type: ignore[attr-defined]
    return watched


def _tell(name: str) -> None:
    if place.rank() == 0:
        _log.warning(
            "%s was given data of ringar.data.shard, a part of the data: its result is that of "
            "this rank alone. %s",
            name,
            _REMEDIES[name],
        )
