"""The messages that a decoupled module has taken, and mailboxes that give them out again.

The weights of a module follow from its first weights, its batches, the learning rates that
callbacks set, and the messages that it has taken, each with its step: a gradient that comes a step
later teaches the synthesizer a step later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import keras
import numpy as np

from ringar.parallel.pipeline.mailboxes import Activation, Gradient

Arrays = list[np.ndarray]


@dataclasses.dataclass
class Log:
    """Hold the messages that one module has taken.

    Attributes:
        step: the first step.
        begin: the variables at the beginning: of the module and its optimizer, and of its
            synthesizers of gradients and of inputs and their optimizers.
        activations: the activations, each after the step in which it was taken.
        gradients: the gradients, each after the step in which it was taken.
        rates: the learning rates that callbacks or the user have set, with the first step of each.
    """

    step: int
    begin: list[Arrays]
    activations: list[tuple[int, Activation]] = dataclasses.field(default_factory=list)
    gradients: list[tuple[int, Gradient]] = dataclasses.field(default_factory=list)
    rates: list[tuple[int, float]] = dataclasses.field(default_factory=list)


class Rate:
    """Note the learning rate of an optimizer where it changes between steps.

    A schedule is a function of the number of steps, and is not noted.

    Args:
        optimizer: the optimizer.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer = optimizer
        self._last = self.now

    @property
    def now(self) -> float | None:
        """The current rate; None for a schedule."""
        rate = self._optimizer.learning_rate
        return float(rate) if isinstance(rate, keras.Variable) else None

    def note(self, log: Log, step: int) -> None:
        """Add the rate to a log if it differs from that of the step before."""
        now = self.now
        if now is not None and now != self._last:
            log.rates.append((step, now))
        self._last = now

    def set(self, rate: float) -> None:
        """Set the rate."""
        self._optimizer.learning_rate = rate


class Replayed:
    """Stand in for the mailboxes above and below a module, and give out the messages of a log.

    Args:
        log: the messages.
        rate: the learning rate of the module's optimizer.

    Attributes:
        step: the step of the module.
    """

    def __init__(self, log: Log, rate: Rate) -> None:
        self.step = log.step
        self._rate, self._rates = rate, dict(log.rates)
        self.above, self.below = ReplayedAbove(self, log), ReplayedBelow(self, log)

    def begin(self, step: int) -> None:
        """Begin a step, with its learning rate."""
        self.step = step
        if step in self._rates:
            self._rate.set(self._rates[step])


class ReplayedAbove:
    """Give out recorded gradients; drop activations that are sent."""

    def __init__(self, replayed: Replayed, log: Log) -> None:
        self._replayed, self._left = replayed, list(reversed(log.gradients))
        self._in_flight = 0

    def send(self, *message: object) -> None:
        """Count a batch."""
        self._in_flight += 1

    def gradients(self, through: int) -> list[Gradient]:
        """Return the gradients that the module had taken by now, of batches that it has sent."""
        messages: list[Gradient] = []
        while self._in_flight and self._left and self._left[-1][0] <= self._replayed.step:
            messages.append(self._left.pop()[1])
            self._in_flight -= 1
        return messages


class ReplayedBelow:
    """Give out recorded activations; drop gradients that are sent."""

    def __init__(self, replayed: Replayed, log: Log) -> None:
        self._replayed, self._left = replayed, list(reversed(log.activations))

    def activations(
        self, through: int, last: int, meanwhile: Callable[[], object] | None = None
    ) -> list[Activation]:
        """Return the activations that the module had taken by now."""
        messages: list[Activation] = []
        while self._left and self._left[-1][0] <= self._replayed.step:
            messages.append(self._left.pop()[1])
        return messages

    def send(self, *message: object) -> None:
        """Do nothing."""
