"""The order in which settings are tried, and the choice of those that stay.

First come samples that do not count: the first steps of a job are slower. Then the defaults are
measured, then the proposals of the sampler. In the end the best and the defaults are measured in
turns. The best one stays only if it is faster beyond the noise of these turns; else the defaults
stay. So a search that was misled by a disturbance ends with the defaults.

A search is a generator of samples. Its caller measures each, and sends the seconds per step.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Protocol

from ringar.keras.tuned import DEFAULTS, Settings
from ringar.keras.tuning.space import Space

TURNS = 5
"""Pairs of samples in the comparison with the defaults."""
_T = 2.132
"""Student's t: with 4 degrees of freedom, 5% of differences without a cause are beyond it."""
_MOST_REPEATED = 20
"""Proposals in a row that were measured before, after which the search ends."""


class Sampler(Protocol):
    """Propose settings; after each proposal its seconds are told."""

    def ask(self) -> Settings:
        """Return settings to try; the first ones are the defaults."""

    def tell(self, seconds: float) -> None:
        """Take the seconds of a step with the last settings."""


@dataclass(frozen=True)
class Sample:
    """Ask for a measurement.

    Attributes:
        phase: "warm-up", "search" or "compare".
        settings: what to measure.
    """

    phase: str
    settings: Settings


@dataclass(frozen=True)
class Choice:
    """Tell the result of a search.

    Attributes:
        settings: those that stay.
        seconds: the time of a step with them in the comparison, or in the search without one.
        default_seconds: the same with the defaults.
        trials: the number of different settings that were measured.
    """

    settings: Settings
    seconds: float
    default_seconds: float
    trials: int


def search(
    space: Space, sampler: Sampler, warmup: int, samples: int
) -> Generator[Sample, float, Choice]:
    """Yield samples to measure, take their seconds per step, and return the choice.

    Args:
        space: the settings that may be tried.
        sampler: proposes some of them.
        warmup: the samples that do not count.
        samples: the settings that are tried, at most.
    """
    for _ in range(warmup):
        yield Sample("warm-up", DEFAULTS)
    seconds: dict[Settings, float] = {}
    repeated = 0
    while len(seconds) < min(samples, space.count) and repeated < _MOST_REPEATED:
        settings = sampler.ask()
        repeated = repeated + 1 if settings in seconds else 0
        if not repeated:
            seconds[settings] = yield Sample("search", settings)
        sampler.tell(seconds[settings])
    best = min(seconds, key=lambda settings: seconds[settings])
    if best == DEFAULTS:
        return Choice(DEFAULTS, seconds[best], seconds[best], len(seconds))
    seconds_of_best, defaults = yield from _compare(best)
    stays = best if is_faster(seconds_of_best, defaults) else DEFAULTS
    gain = mean(seconds_of_best if stays is best else defaults)
    return Choice(stays, gain, mean(defaults), len(seconds))


def _compare(best: Settings) -> Generator[Sample, float, tuple[list[float], list[float]]]:
    """Measure the best and the defaults in turns, each as often first."""
    times: dict[Settings, list[float]] = {best: [], DEFAULTS: []}
    for turn in range(TURNS):
        for settings in (best, DEFAULTS) if turn % 2 else (DEFAULTS, best):
            seconds = yield Sample("compare", settings)
            times[settings].append(seconds)
    return times[best], times[DEFAULTS]


def is_faster(seconds: Sequence[float], default_seconds: Sequence[float]) -> bool:
    """Return whether `seconds` are less than the defaults', beyond the noise of their turns."""
    gains = [default - step for step, default in zip(seconds, default_seconds, strict=True)]
    return mean(gains) > _T * stdev(gains) / math.sqrt(len(gains))
