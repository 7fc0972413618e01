"""Traits of a callback: whether it writes, to which paths, and which attributes are its state.

Traits are read from a callback's class, so that new callbacks of Keras have them, too.
A class of Keras writes if its constructor takes a path. Its state is what its methods assign,
except the constructor. Subclasses inherit both. Other classes name their traits: `rank_zero`,
`state_attributes`.
"""

from __future__ import annotations

import dis
import inspect
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

_PATH = re.compile("filepath|filename|directory|folder|.*_dir")
#: Callbacks of Keras that write elsewhere than to a path.
_SHOWN = (keras.callbacks.ProgbarLogger, keras.callbacks.RemoteMonitor)
#: Callbacks of Keras whose state `Elastic` and `Backup` keep in their own way.
_KEPT_ELSEWHERE = (keras.callbacks.History, keras.callbacks.BackupAndRestore)
#: Methods that assign settings, not state.
_SETTERS = ("__init__", "set_model", "set_params")
#: Loggers hold times, profilers and files, too: of these only counters are state.
_COUNTERS = {keras.callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch")}


def writes(callback: keras.callbacks.Callback) -> bool:
    """Return whether `callback` is for the first rank: by its `rank_zero`, or a path."""
    choice = getattr(callback, "rank_zero", None)
    if choice is not None:
        return bool(choice)
    return _shows(callback) or saves_models(callback)


def reads_metrics(callback: keras.callbacks.Callback) -> bool:
    """Return whether a callback of Keras decides by metrics, or shows or stores them."""
    of_keras = any(True for _ in _of_keras(callback))
    is_history = isinstance(callback, keras.callbacks.History)
    return writes(callback) or is_history or (of_keras and hasattr(callback, "monitor"))


def saves_models(callback: keras.callbacks.Callback) -> bool:
    """Return whether a callback of Keras saves the model while it trains."""
    return hasattr(callback, "save_freq") and any(_path_arguments(_of_keras(callback)))


def paths(callback: keras.callbacks.Callback) -> list[str]:
    """Return the paths that `callback` has been given, as absolute ones."""
    values = (getattr(callback, name, None) for name in _path_arguments(type(callback).__mro__))
    texts = {os.fspath(value) for value in values if isinstance(value, str | os.PathLike)}
    return sorted(os.path.abspath(path) for path in texts)


def kind(callback: keras.callbacks.Callback) -> str:
    """Return the name of the class that gives `callback` its state: Keras' own, if it has one."""
    return next(_of_keras(callback), type(callback)).__name__


def state(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Return the attributes of `callback` that change in training and that a resumed one needs."""
    values = {name: getattr(callback, name, None) for name in _state_attributes(callback)}
    return {name: _data(value) for name, value in values.items() if _is_data(value)}


def _of_keras(callback: keras.callbacks.Callback) -> Iterator[type]:
    """Yield the classes of `callback` that are Keras' own, except the base of all."""
    for base in type(callback).__mro__:
        if base.__module__.partition(".")[0] == "keras" and base is not keras.callbacks.Callback:
            yield base


def _shows(callback: keras.callbacks.Callback) -> bool:
    """Return whether a callback of Keras writes about the training, as loggers do."""
    is_logger = any(_path_arguments(_of_keras(callback))) and not saves_models(callback)
    return is_logger or isinstance(callback, _SHOWN)


def _path_arguments(classes: Iterable[type]) -> Iterator[str]:
    for base in classes:
        constructor = vars(base).get("__init__")
        if constructor is not None and base is not object:
            names = inspect.signature(constructor).parameters
            yield from (name for name in names if _PATH.fullmatch(name))


def _state_attributes(callback: keras.callbacks.Callback) -> set[str]:
    attributes = set(getattr(callback, "state_attributes", ()))
    for base, names in _COUNTERS.items():
        attributes.update(names if isinstance(callback, base) else ())
    if _shows(callback) or isinstance(callback, _KEPT_ELSEWHERE):
        return attributes
    for base in _of_keras(callback):
        settings = inspect.signature(base).parameters
        attributes |= (_assigned(base) & vars(callback).keys()) - settings.keys() - {"monitor_op"}
    return attributes


def _assigned(base: type) -> set[str]:
    """Return the attributes that the methods of a class assign, `_SETTERS` left out."""
    return {
        str(instruction.argval)
        for name, method in vars(base).items()
        if inspect.isfunction(method) and name not in _SETTERS
        for instruction in dis.get_instructions(method)
        if instruction.opname == "STORE_ATTR"
    }


def _is_data(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_data, value))
    plain = bool | int | float | str | np.generic | np.ndarray
    return value is None or isinstance(value, plain) or keras.ops.is_tensor(value)


def _data(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_data(element) for element in value]
    return keras.ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else value
