"""Codistillation in one process and NumPy: a net of two layers per group, trained with SGD."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import keras
import numpy as np

Arrays = list[np.ndarray]
Batch = tuple[np.ndarray, ...]
"""Inputs and classes."""

FEATURES, CLASSES = 6, 3


def classes(rows: int, seed: int) -> Batch:
    """Rows of 6 features and their classes, the same on every rank."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    return x, np.argmax(x @ np.random.default_rng(99).normal(size=(FEATURES, CLASSES)), axis=1)


def classifier(seed: int, activation: str | None = None) -> keras.Model:
    """The net, which predicts logits unless there is an activation, initialized from `seed`."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(CLASSES, activation=activation),
        ]
    )


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def logits_of(weights: Arrays, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The hidden units and the logits."""
    hidden = np.tanh(x @ weights[0] + weights[1])
    return hidden, hidden @ weights[2] + weights[3]


@dataclass
class Group:
    """Hold the weights of a group, and copies of those of all groups.

    Attributes:
        batches: those of an epoch, of all ranks of the group together.
        shortest: the batches that all of its ranks have.
    """

    weights: Arrays
    batches: Sequence[Batch]
    shortest: int
    copies: list[Arrays] | None = None
    meets: bool = True  # in this epoch
    has_ended: bool = False  # or another group


def train(
    initial: Sequence[Arrays],
    batches: Sequence[Sequence[Batch]],
    epochs: int,
    shortest: Sequence[int] | None = None,
    *,
    distance: str,
    alpha: float,
    burn_in: int,
    period: int,
    rate: float,
) -> list[Arrays]:
    """The weights of each group after `epochs` of its batches."""
    groups = [
        Group([np.asarray(array, np.float64) for array in weights], group_batches, count)
        for weights, group_batches, count in zip(
            initial, batches, shortest or [len(epoch) for epoch in batches], strict=True
        )
    ]

    def live(learner: Group) -> Iterator[str]:
        """Train, and stop where groups meet."""
        steps, is_peer = 0, [group is not learner for group in groups]
        if burn_in == 0:
            yield "with data"
        for _ in range(epochs):
            for number, batch in enumerate(learner.batches):
                teachers = list(itertools.compress(learner.copies or [], is_peer))
                learner.weights = _step(learner.weights, teachers, batch, distance, alpha, rate)
                steps += 1
                is_due = steps >= burn_in and (steps - burn_in) % period == 0
                if is_due and learner.meets and not learner.has_ended:
                    yield "with data" if number < learner.shortest else "without data"
            if learner.meets and not learner.has_ended:
                yield "without data"
            learner.meets = True
        if not learner.has_ended:
            yield "the end"

    lives = [live(group) for group in groups]
    while reports := {report for life in lives if (report := next(life, "")) != ""}:
        for group in groups:
            if reports == {"with data"}:
                group.copies = [peer.weights for peer in groups]
            group.meets = reports == {"with data"}
            group.has_ended = "the end" in reports
    return [group.weights for group in groups]


def _step(
    weights: Arrays,
    teachers: Sequence[Arrays],
    batch: Batch,
    distance: str,
    alpha: float,
    rate: float,
) -> Arrays:
    x, y = batch
    hidden, logits = logits_of(weights, x)
    back = (softmax(logits) - np.eye(CLASSES)[y]) / len(x)
    for teacher in teachers:
        teacher_logits = logits_of(teacher, x)[1]
        if distance == "kl":  # of the distribution of the teacher from that of the model
            slope = (softmax(logits) - softmax(teacher_logits)) / len(x)
        else:
            slope = 2 * (logits - teacher_logits) / teacher_logits.size
        back = back + alpha * slope / len(teachers)
    below = back @ weights[2].T * (1 - hidden**2)
    gradients = [x.T @ below, below.sum(axis=0), hidden.T @ back, back.sum(axis=0)]
    return [w - rate * g for w, g in zip(weights, gradients, strict=True)]
