"""Local steps in one process: a model per rank, and the papers' formulas in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from tests.keras import uneven

Arrays = list[np.ndarray]
Combine = Callable[["Ranks", list[Arrays], np.ndarray], None]
"""A function of the ranks' models, x0 of each and the ranks' shares, which ends a period."""


@dataclass
class Ranks:
    """Hold a model of each rank, compiled with an optimizer of its own, and a rule's state.

    Attributes:
        rates: the learning rates of each rank's steps of the period.
    """

    models: list[keras.Model]
    state: dict[str, Any] = field(default_factory=dict)
    rates: list[list[float]] = field(default_factory=list)

    def parameters(self) -> list[Arrays]:
        """The trainable variables of each rank."""
        return [[np.array(v) for v in model.trainable_variables] for model in self.models]

    def mean(self, of_ranks: Sequence[Arrays], shares: np.ndarray) -> Arrays:
        """The mean over the ranks, each with its share."""
        weighted = [[s * a for a in arrays] for s, arrays in zip(shares, of_ranks, strict=True)]
        return [np.asarray(sum(parts)) for parts in zip(*weighted, strict=True)]

    def set(self, rank: int, arrays: Arrays) -> None:
        """Give a rank these parameters."""
        for variable, value in zip(self.models[rank].trainable_variables, arrays, strict=True):
            variable.assign(value)

    def set_all(self, arrays: Arrays) -> None:
        """Give all ranks these parameters."""
        for rank in range(len(self.models)):
            self.set(rank, arrays)


def train(
    build: Callable[[], keras.Model],
    optimizer: Callable[[], keras.optimizers.Optimizer],
    batches: Sequence[Sequence[uneven.Batch]],
    period: Callable[[int], int],
    combine: Combine,
    epochs: int,
) -> Ranks:
    """Train a model per rank; `period` tells the steps of one that begins behind a step.

    The k-th exchange of an epoch is that of each rank's k-th period. A rank that has no k-th period
    counts with no rows.
    """
    ranks = Ranks([build() for _ in batches])
    for model in ranks.models:
        model.compile(optimizer(), "mse")
    step = 0
    for _ in range(epochs):
        periods = [list(_periods(rank_batches, step, period)) for rank_batches in batches]
        for number in range(max(map(len, periods))):
            before = ranks.parameters()
            rows = np.zeros(len(batches))
            ranks.rates = [[] for _ in batches]
            for rank, periods_of_rank in enumerate(periods):
                for x, y in periods_of_rank[number] if number < len(periods_of_rank) else ():
                    ranks.rates[rank].append(float(ranks.models[rank].optimizer.learning_rate))
                    ranks.models[rank].train_on_batch(x, y)
                    rows[rank] += len(x)
            combine(ranks, before, rows / rows.sum())
        step += max(map(len, batches))
        for model in ranks.models:  # learning rates of all ranks agree
            model.optimizer.iterations.assign(step)
        if "center" in ranks.state:  # which ranks take at the end of an epoch
            ranks.set_all(ranks.state["center"])
    return ranks


def _periods(batches: Sequence[uneven.Batch], step: int, period: Callable[[int], int]) -> Any:
    at = 0
    while at < len(batches):
        steps = period(step + at)
        yield batches[at : at + steps]
        at += steps


def averaging(ranks: Ranks, before: list[Arrays], shares: np.ndarray) -> None:
    """X = mean(x)."""
    ranks.set_all(ranks.mean(ranks.parameters(), shares))


def slow_momentum(beta: float, alpha: float) -> Combine:
    """U = beta u + (x0 - mean(x)) / gamma; x = x0 - alpha gamma u; gamma is the mean rate."""

    def combine(ranks: Ranks, before: list[Arrays], shares: np.ndarray) -> None:
        x0, mean = before[0], ranks.mean(ranks.parameters(), shares)
        rates = zip(shares, ranks.rates, strict=True)
        gamma = sum(share * np.mean(rank_rates) for share, rank_rates in rates if rank_rates)
        u = ranks.state.get("u", [0.0] * len(x0))
        ranks.state["u"] = [beta * s + (a - m) / gamma for s, a, m in zip(u, x0, mean, strict=True)]
        new = zip(x0, ranks.state["u"], strict=True)
        ranks.set_all([a - alpha * gamma * s for a, s in new])

    return combine


def nesterov(rate: float, momentum: float) -> Combine:
    """Nesterov's momentum on x0 - mean(x): v = m v - rate d; x = x0 + m v - rate d."""

    def combine(ranks: Ranks, before: list[Arrays], shares: np.ndarray) -> None:
        x0, mean = before[0], ranks.mean(ranks.parameters(), shares)
        d = [a - m for a, m in zip(x0, mean, strict=True)]
        v = ranks.state.get("v", [0.0] * len(x0))
        ranks.state["v"] = v = [momentum * s - rate * g for s, g in zip(v, d, strict=True)]
        new = zip(x0, v, d, strict=True)
        ranks.set_all([a + momentum * s - rate * g for a, s, g in new])

    return combine


def elastic(beta: float) -> Combine:
    """X -= beta / p (x - center); center += beta mean(x - center)."""

    def combine(ranks: Ranks, before: list[Arrays], shares: np.ndarray) -> None:
        center = ranks.state.setdefault("center", before[0])
        d = [[x - c for x, c in zip(arrays, center, strict=True)] for arrays in ranks.parameters()]
        for rank, arrays in enumerate(ranks.parameters()):
            moves = zip(arrays, d[rank], strict=True)
            ranks.set(rank, [x - beta / len(d) * move for x, move in moves])
        mean = ranks.mean(d, shares)
        ranks.state["center"] = [c + beta * m for c, m in zip(center, mean, strict=True)]

    return combine
