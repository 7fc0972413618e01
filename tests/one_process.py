"""What one process does, for all ranks to compare with: rank 0 does it, the others receive it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import keras

import ringar

T = TypeVar("T")


def compute(function: Callable[[], T]) -> T:
    """Return, on all ranks, what rank 0 computes. Collective."""
    result: Any = None
    if ringar.rank() == 0:
        try:
            result = function()
        except Exception as error:
            ringar.broadcast_object(f"{type(error).__name__}: {error}")
            raise
        ringar.broadcast_object(None)
    else:
        failure: str | None = ringar.broadcast_object(None)
        if failure:
            raise AssertionError(f"rank 0 has failed alone: {failure}")
    return ringar.broadcast_object(result)


def train(model: keras.Model, how: Callable[[], T]) -> T:
    """Train a model on rank 0; all have its weights afterwards, and its optimizer's state."""

    def trained() -> tuple[T, list[Any]]:
        result = how()
        return result, [variable.numpy() for variable in _state(model)]

    result, values = compute(trained)
    if ringar.rank() > 0:
        for variable, value in zip(_state(model), values, strict=True):
            variable.assign(value)
    return result


def fit(model: keras.Model, *data: Any, **options: Any) -> dict[str, list[float]]:
    """Fit a compiled model on rank 0 as `train` does; return its history on all ranks."""
    return train(model, lambda: model.fit(*data, **{"verbose": 0, **options}).history)


def _state(model: keras.Model) -> list[Any]:
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return list(model.weights)
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    return [*model.weights, *optimizer.variables]
