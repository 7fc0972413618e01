"""Rules for the end of a period: the averages of the ranks, and their new parameters.

The names are those of the papers: x0 are the parameters at the beginning of a period, x those of a
rank at its end, and the mean is that over the ranks. Ranks send a difference, x0 - x: it is small,
so that a narrow or compressed form of it loses little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from ringar.keras import description
from ringar.keras.optimizer_copy import copy_of


class Rule:
    """Define the end of a period.

    Attributes:
        variables: the trainable variables.
        state: the variables of the rule.
        function: the public name of the function that the user has called.
    """

    variables: list[Any]
    state: list[Any]
    function: ClassVar[str] = "ringar.LocalSGD"

    @property
    def description(self) -> dict[str, object]:
        """The settings that must be the same on all ranks."""
        return {"outer": None}

    def renewed(self) -> Rule:
        """Return a rule with these settings, and without the state of this one."""
        raise NotImplementedError

    def build(self, variables: list[Any]) -> None:
        """Make the state for `variables`."""
        self.variables, self.state = variables, []

    def begin(self) -> None:
        """Act before the first step of a period."""

    def note_step(self, rate: tf.Tensor, number: tf.Tensor) -> None:
        """Note a step that this rank has taken.

        Args:
            rate: its learning rate.
            number: its number in the period, from 1.
        """

    def averaged(self) -> list[Any]:
        """Return the variables of the state that ranks average before they combine."""
        return []

    def contributions(self) -> list[tf.Tensor]:
        """Return this rank's part of the averages, a tensor per variable."""
        raise NotImplementedError

    def combine(self, means: Sequence[tf.Tensor]) -> None:
        """Set the variables, given the averages of all ranks' contributions."""
        raise NotImplementedError

    def settle(self) -> None:
        """Set the variables to the common values of all ranks, until the next period begins."""


class Averaging(Rule):
    """Set x to the mean of all ranks' x: parameter averaging, local SGD."""

    def renewed(self) -> Averaging:
        """Return a rule without state."""
        return type(self)()

    def build(self, variables: list[Any]) -> None:
        """Make room for x0."""
        super().build(variables)
        self._x0 = _copies(variables, "period_start")
        self.state += self._x0

    def begin(self) -> None:
        """Keep x0."""
        _assign(self._x0, self.variables)

    def contributions(self) -> list[tf.Tensor]:
        """Return x0 - x."""
        return [x0 - _value(x) for x0, x in zip(self._x0, self.variables, strict=True)]

    def combine(self, means: Sequence[tf.Tensor]) -> None:
        """Set x = x0 - mean(x0 - x)."""
        for x, x0, mean in zip(self.variables, self._x0, means, strict=True):
            x.assign(x0 - mean)


class SlowMomentum(Averaging):
    """Give averages a momentum: SlowMo, algorithm 1 of Wang, Tantia, Ballas and Rabbat 2020.

    With the learning rate gamma of the optimizer: u <- beta u + mean(x0 - x) / gamma, then
    x <- x0 - alpha gamma u. On one rank with beta = 0 it is Lookahead (Zhang et al. 2019).

    The paper has one gamma for all steps of a period. Here it is the mean of their rates, and that
    over the ranks: ranks with fewer steps are elsewhere in a schedule, which may end with a rate
    of 0.

    Args:
        beta: the slow momentum.
        alpha: the slow learning rate.
    """

    def __init__(self, beta: float, alpha: float) -> None:
        self.beta, self.alpha = beta, alpha

    @property
    def description(self) -> dict[str, object]:
        """The settings that must be the same on all ranks."""
        return {"outer": {"class": "SlowMo", "beta": self.beta, "alpha": self.alpha}}

    def renewed(self) -> SlowMomentum:
        """Return a rule without state."""
        return SlowMomentum(self.beta, self.alpha)

    def build(self, variables: list[Any]) -> None:
        """Make room for x0, u and gamma."""
        super().build(variables)
        self._u = [
            tf.Variable(tf.zeros(x.shape, x.dtype), trainable=False, name="slow_momentum")
            for x in variables
        ]
        self._gamma = tf.Variable(0.0, trainable=False, name="rate_of_period")
        self.state += [*self._u, self._gamma]

    def note_step(self, rate: tf.Tensor, number: tf.Tensor) -> None:
        """Note the learning rate."""
        former, rate = self._gamma.read_value(), tf.cast(rate, tf.float32)
        mean = former + (rate - former) / tf.cast(number, tf.float32)
        self._gamma.assign(tf.where(number == 1, rate, mean))

    def averaged(self) -> list[Any]:
        """Return gamma."""
        return [self._gamma]

    def combine(self, means: Sequence[tf.Tensor]) -> None:
        """Set u and x."""
        for x, x0, u, mean in zip(self.variables, self._x0, self._u, means, strict=True):
            gamma = tf.cast(self._gamma.read_value(), mean.dtype)
            now = u.assign(self.beta * u + tf.math.divide_no_nan(mean, gamma))
            x.assign(x0 - self.alpha * gamma * now)


class OuterOptimizer(Averaging):
    """Take a step of another optimizer, whose gradient is the mean of x0 - x.

    With SGD of Nesterov momentum it is DiLoCo (Douillard et al. 2023).

    Args:
        outer: an optimizer of Keras.
    """

    def __init__(self, outer: keras.optimizers.Optimizer) -> None:
        self._outer = outer

    @property
    def description(self) -> dict[str, object]:
        """The settings that must be the same on all ranks; the outer learning rate, too."""
        return {"outer": description.optimizer(self._outer, rate=True)}

    def renewed(self) -> OuterOptimizer:
        """Return a rule with a new optimizer of the same settings."""
        return OuterOptimizer(copy_of(self._outer))

    def build(self, variables: list[Any]) -> None:
        """Make room for x0, and build the optimizer."""
        super().build(variables)
        self._outer.build(variables)
        self.state += self._outer.variables

    def combine(self, means: Sequence[tf.Tensor]) -> None:
        """Take the step from x0."""
        _assign(self.variables, self._x0)
        self._outer.apply(list(means), self.variables)


class ElasticAveraging(Rule):
    """Draw each rank's x to a center, and the center to all x: EASGD, Zhang et al. 2015.

    With d = x - center: x <- x - alpha d, and center <- center + beta mean(d), where
    alpha = beta / p on p ranks. After `settle` all ranks have the center.

    Args:
        beta: the moving rate of the center.
        ranks: p.
    """

    function = "ringar.EASGD"

    def __init__(self, beta: float, ranks: int) -> None:
        self.beta, self.ranks = beta, ranks

    @property
    def description(self) -> dict[str, object]:
        """The settings that must be the same on all ranks."""
        return {"beta": self.beta}

    def renewed(self) -> ElasticAveraging:
        """Return a rule without state."""
        return ElasticAveraging(self.beta, self.ranks)

    def build(self, variables: list[Any]) -> None:
        """Make room for the center."""
        super().build(variables)
        self._center = _copies(variables, "center")
        self._is_settled = tf.Variable(True, trainable=False, name="is_settled")
        self.state += [*self._center, self._is_settled]

    def begin(self) -> None:
        """Take the center from ranks that have settled."""

        def take() -> tf.Tensor:
            _assign(self._center, self.variables)
            self._is_settled.assign(False)
            return tf.constant(0)

        tf.cond(self._is_settled.read_value(), take, lambda: tf.constant(0))

    def contributions(self) -> list[tf.Tensor]:
        """Return d."""
        return [_value(x) - center for x, center in zip(self.variables, self._center, strict=True)]

    def combine(self, means: Sequence[tf.Tensor]) -> None:
        """Move x and the center."""
        values = self.contributions()
        for x, center, d, mean in zip(self.variables, self._center, values, means, strict=True):
            x.assign(_value(x) - self.beta / self.ranks * d)
            center.assign_add(self.beta * mean)

    def settle(self) -> None:
        """Give the model the center."""
        if not bool(self._is_settled):
            _assign(self.variables, self._center)
            self._is_settled.assign(True)


def _value(variable: Any) -> tf.Tensor:
    return tf.convert_to_tensor(variable)


def _copies(variables: Sequence[Any], name: str) -> list[tf.Variable]:
    return [tf.Variable(_value(variable), trainable=False, name=name) for variable in variables]


def _assign(targets: Sequence[Any], sources: Sequence[Any]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.assign(_value(source))
