"""The messages that a decoupled module has taken, and mailboxes that give them out again.

The weights of a module follow from its batches, its first weights and the messages that it has
taken, and when: gradients that come a step later teach its synthesizer a step later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

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
        activations: those taken, with the step in which.
        gradients: those taken, with the step in which.
    """

    step: int
    begin: list[Arrays]
    activations: list[tuple[int, Activation]] = dataclasses.field(default_factory=list)
    gradients: list[tuple[int, Gradient]] = dataclasses.field(default_factory=list)


class Replayed:
    """Stand in for the mailboxes above and below a module, and give out the messages of a log.

    Args:
        log: the messages.

    Attributes:
        step: the step of the module.
    """

    def __init__(self, log: Log) -> None:
        self.step = 0
        self.above, self.below = ReplayedAbove(self, log), ReplayedBelow(self, log)


class ReplayedAbove:
    """Give out recorded gradients; what is sent is dropped."""

    def __init__(self, replayed: Replayed, log: Log) -> None:
        self._replayed, self._left = replayed, list(reversed(log.gradients))
        self._in_flight = 0

    def send(
        self,
        number: int,
        rows: int,
        tensors: Sequence[Any],
        penalty: float,
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        """Count a batch."""
        self._in_flight += 1

    def gradients(self, through: int) -> list[Gradient]:
        """Return the gradients that the module had taken by now, of batches that it has sent."""
        found: list[Gradient] = []
        while self._in_flight and self._left and self._left[-1][0] <= self._replayed.step:
            found.append(self._left.pop()[1])
            self._in_flight -= 1
        return found


class ReplayedBelow:
    """Give out recorded activations; what is sent is dropped."""

    def __init__(self, replayed: Replayed, log: Log) -> None:
        self._replayed, self._left = replayed, list(reversed(log.activations))

    def activations(
        self, through: int, last: int, meanwhile: Callable[[], object] | None = None
    ) -> list[Activation]:
        """Return the activations that the module had taken by now."""
        found: list[Activation] = []
        while self._left and self._left[-1][0] <= self._replayed.step:
            found.append(self._left.pop()[1])
        return found

    def send(
        self,
        number: int,
        rows: int,
        tensors: Sequence[Any] | None,
        report: np.ndarray,
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        """Do nothing."""
