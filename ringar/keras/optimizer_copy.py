"""Copies of optimizers, with the settings that Keras leaves out of `get_config`.

Shards, outer optimizers, stages and synthesizers have optimizers with the user's settings and
without state. `from_config(get_config())` loses exclusions from weight decay, attributes that a
subclass sets beside its config, and schedules of the user's class that have no config.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import keras
import numpy as np

from ringar.sharding.slots import with_nested

_PLAIN = (type(None), bool, int, float, complex, str, bytes, re.Pattern, FunctionType, np.generic)
_NOT_SETTINGS = {
    "name",
    "built",
    "_built",
    "_exchange",
    "_exchange_step",
    "_exclude_from_weight_decay_cache",
    "_iterations",
    "_learning_rate",
    "_lock",
    "_tracker",
    "_trainable_variables",
    "_trainable_variables_indices",
    "_use_weight_decay",
    "_var_to_optimizer_idx",
    "_variables",
}
_RATES: dict[int, Any] = {}  # schedules of the optimizer that is being copied


def copy_of(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return a plain optimizer with the settings of `optimizer`, and without its state.

    Schedules are shared: they are functions of the step.

    Raises:
        ValueError: if Keras cannot copy it, or it holds an object that its config lacks.
    """
    with _rates_by_reference(optimizer):
        try:
            copy = optimizer.__class__.from_config(optimizer.get_config())
        except Exception as error:
            raise ValueError(
                "`optimizer` must be one that its `from_config(get_config())` copies: ranks and "
                f"shards have one each. Received: {optimizer.__class__.__name__}, which raises "
                f"{type(error).__name__}: {error}"
            ) from error
    for original, twin in zip(with_nested(optimizer), with_nested(copy), strict=False):
        _carry(original, twin)
    return copy


def decay_as(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[Any], originals: Sequence[Any]
) -> None:
    """Let a built optimizer decay the weights of each variable as it would those of its original.

    Args:
        optimizer: the optimizer that trains `variables`.
        variables: copies, or parts, of `originals`.
        originals: the variables of the model, to which exclusions refer by name or identity.
    """
    for part in with_nested(optimizer):
        key = part._var_key
        pairs = zip(variables, originals, strict=True)
        decays = {key(variable): decays_weight(part, original) for variable, original in pairs}

        def uses(variable: Any, key: Any = key, decays: Any = decays) -> bool:
            return bool(decays[key(variable)])

        # Bypass Keras' __setattr__, which tracks attributes.
        object.__setattr__(part, "_use_weight_decay", uses)


def decays_weight(optimizer: keras.optimizers.Optimizer, variable: Any) -> bool:
    """Return whether an optimizer decays a variable; Keras asks it with TensorFlow's variable."""
    return bool(optimizer._use_weight_decay(getattr(variable, "value", variable)))


@keras.saving.register_keras_serializable(package="ringar")
class _RateByReference(keras.optimizers.schedules.LearningRateSchedule):
    """Stand for a schedule, or a function, in a config."""

    def __init__(self, rate: Any) -> None:
        self.rate = rate

    def __call__(self, step: Any) -> Any:
        return self.rate(step)

    def get_config(self) -> dict[str, int]:
        return {"rate": id(self.rate)}

    @classmethod
    def from_config(cls, config: Mapping[str, int]) -> Any:
        return _RATES[config["rate"]]


@contextmanager
def _rates_by_reference(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    rates = [(part, part._learning_rate) for part in with_nested(optimizer)]
    rates = [(part, rate) for part, rate in rates if not hasattr(rate, "assign")]
    try:
        for part, rate in rates:
            _RATES[id(rate)] = rate
            object.__setattr__(part, "_learning_rate", _RateByReference(rate))
        yield
    finally:
        for part, rate in rates:
            object.__setattr__(part, "_learning_rate", rate)
            _RATES.pop(id(rate), None)


def _carry(original: Any, twin: Any) -> None:
    """Give `twin` the settings of `original`."""
    for name, value in vars(original).items():
        if name in _NOT_SETTINGS or name.startswith("_self_") or _has_state(value):
            continue
        try:
            setting = _plain(value)
        except TypeError:
            if not hasattr(twin, name):  # otherwise its constructor has made it
                raise ValueError(
                    "`optimizer` must hold all settings in its config, or as plain values: ranks "
                    f"and shards have a copy each. Received: {type(original).__name__} with "
                    f"`{name}` of {type(value).__name__}, which its `from_config` does not restore"
                ) from None
        else:
            object.__setattr__(twin, name, setting)


def _has_state(value: Any) -> bool:
    """Return whether `value` is, or contains, a variable or an optimizer."""
    if isinstance(value, Mapping):
        return any(map(_has_state, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_state, value))
    return hasattr(value, "assign") or isinstance(value, keras.optimizers.Optimizer)


def _plain(value: Any) -> Any:
    """Return a copy of numbers, names and their containers; raise a TypeError for others."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    for container in (list, tuple, set, frozenset):
        if isinstance(value, container):
            return container(map(_plain, value))
    raise TypeError
