"""The settings that are worth trying for a model and a job.

A setting that gives the same buckets as another one is the same step. So a small model, whose
gradients fit into one bucket, has little to try.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ringar.keras import buckets
from ringar.keras.buckets import Spec
from ringar.keras.tuned import DEFAULTS, Settings

_MIB = 1 << 20
#: None in a dimension is the default, which is tried first.
_BUCKETS = (None, 1 * _MIB, 2 * _MIB, 4 * _MIB, 8 * _MIB, 16 * _MIB, 32 * _MIB, 64 * _MIB)
_FIRST_BUCKETS = (None, _MIB // 4, _MIB // 2, 1 * _MIB, 2 * _MIB, 4 * _MIB, 8 * _MIB)
_ALGORITHMS = (None, "ring", "recursive_doubling", "halving_doubling")
_LEAST_FOR_HALVING_DOUBLING = 4
"""Ranks; fewer exchange the messages of a ring."""

Value = int | str | None
Plan = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Job:
    """Describe the job that settings are for.

    Attributes:
        ranks: the number of ranks that train together.
        hosts: the number of their hosts.
        specs: the shapes and dtypes of the trained variables.
        chosen: the settings that the user has chosen.
    """

    ranks: int
    hosts: int
    specs: tuple[Spec, ...]
    chosen: Mapping[str, object] = field(default_factory=dict)


class Space:
    """List what each setting may be.

    Args:
        job: the job that the settings are for.
        compression: whether results may change.

    Attributes:
        dimensions: for each setting that is searched, its values; the first one is the default.
        count: how many different steps they make.
    """

    def __init__(self, job: Job, compression: bool = False) -> None:
        spans_hosts = job.hosts > 1
        halves = job.ranks >= _LEAST_FOR_HALVING_DOUBLING
        dimensions: dict[str, tuple[Value, ...]] = {
            "bucket_bytes": _BUCKETS,
            "first_bucket_bytes": _FIRST_BUCKETS,
            "algorithm": _ALGORITHMS[: 4 if halves else 3] if spans_hosts else (None,),
            "compression": ("none", "bf16") if compression and spans_hosts else ("none",),
        }
        self.dimensions = {
            name: values
            for name, values in dimensions.items()
            if name not in job.chosen and len(values) > 1
        }
        self._first: dict[Settings, Settings] = {}  # that makes the same buckets
        by_plan: dict[Plan, Settings] = {}
        for settings in self._sizes():
            self._first[settings] = by_plan.setdefault(_plan(job, settings), settings)
        names = ("algorithm", "compression")
        self.count = len(by_plan) * math.prod(
            len(self.dimensions.get(name, (None,))) for name in names
        )

    def settings(self, values: Mapping[str, Value]) -> Settings:
        """Return the first settings in the space that make the same step as these values."""
        proposal = replace(DEFAULTS, **values)  # type: ignore[arg-type]
        sizes = self._first[Settings(proposal.bucket_bytes, proposal.first_bucket_bytes)]
        return replace(
            proposal,
            bucket_bytes=sizes.bucket_bytes,
            first_bucket_bytes=sizes.first_bucket_bytes,
        )

    def holds(self, settings: Settings) -> bool:
        """Return whether a search could have found these settings."""
        return all(
            getattr(settings, name) in self.dimensions.get(name, (getattr(DEFAULTS, name),))
            for name in vars(DEFAULTS)
        )

    def _sizes(self) -> Iterator[Settings]:
        for limit in self.dimensions.get("bucket_bytes", (None,)):
            for first in self.dimensions.get("first_bucket_bytes", (None,)):
                yield replace(DEFAULTS, bucket_bytes=limit, first_bucket_bytes=first)  # type: ignore[arg-type]


def _plan(job: Job, settings: Settings) -> Plan:
    chosen = job.chosen.get("bucket_bytes")
    limits = settings.limits(chosen if isinstance(chosen, int) else None)
    return tuple(bucket.indices for bucket in buckets.deal(job.specs, *limits))
