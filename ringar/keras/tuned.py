"""The settings of a training step that Autotune may change (`ringar.keras.tuning`).

They are read while a step is traced, or runs eagerly. Without tuning they are all at their
defaults, and a step that has been traced reads none. A rank that repeats the collectives of a step
without data repeats them with the settings of that step.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import keras

from ringar.collectives.compression import Compression


@dataclass(frozen=True)
class Settings:
    """Hold the settings of a step; None: ringar's default.

    Attributes:
        bucket_bytes: as for `ringar.DistributedOptimizer`.
        first_bucket_bytes: the same limit for the first and the last bucket.
        algorithm: of the allreduces of buckets between hosts.
        compression: "none", or "bf16" for gradients that nothing else compresses.
    """

    bucket_bytes: int | None = None
    first_bucket_bytes: int | None = None
    algorithm: str | None = None
    compression: str = "none"

    def limits(self, chosen: int | None) -> tuple[int | None, int | None]:
        """Return the limits for `buckets.plan`, where `chosen` is the user's `bucket_bytes`."""
        limit, first = chosen or self.bucket_bytes, self.first_bucket_bytes
        return limit, first if limit is None or first is None else min(first, limit)

    def compression_over(self, chosen: Any) -> Any:
        """Return the compression of gradients, where `chosen` is the user's."""
        if self.compression == "bf16" and chosen is Compression.none:
            return Compression.bf16
        return chosen

    def __str__(self) -> str:
        if self == DEFAULTS:
            return "the defaults"
        sizes = f"buckets of {_text(self.bucket_bytes)}, first {_text(self.first_bucket_bytes)}"
        return f"{sizes}, algorithm {self.algorithm or 'auto'}, compression {self.compression}"


DEFAULTS = Settings()
_current: ContextVar[Settings] = ContextVar("settings", default=DEFAULTS)
_of_models: weakref.WeakKeyDictionary[keras.Model, Settings] = weakref.WeakKeyDictionary()


def current() -> Settings:
    """Return the settings of the step that is traced, runs or is repeated."""
    return _current.get()


@contextmanager
def using(settings: Settings) -> Iterator[None]:
    """Let steps have these settings in the context."""
    token = _current.set(settings)
    try:
        yield
    finally:
        _current.reset(token)


def of(model: keras.Model) -> Settings:
    """Return the settings of the steps of `model` that are traced from now on."""
    return _of_models.get(model, DEFAULTS)


def give(model: keras.Model, settings: Settings) -> None:
    """Set the settings of the steps of `model` that are traced from now on."""
    _of_models[model] = settings


def _text(size: int | None) -> str:
    return "the default size" if size is None else f"{size / 2**20:.4g} MiB"
