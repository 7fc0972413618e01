"""Local steps of each rank, and an exchange of parameters after every period of them.

A *period* begins with equal parameters x0 on all ranks (or with those of the rank, in EASGD). In
it each rank takes optimizer steps with its own gradients, and nothing is sent. At its end a
`ringar.asynchronous.rules.Rule` defines the averages of the ranks and the new parameters. All of it
is part of the training step, whether XLA compiles it or not: a conditional whose branches hold the
collectives.

Ranks count with the rows on which they have trained since the last exchange. A rank whose data has
ended exchanges its steps so far, and then takes part without rows until the others have ended, too:
the epoch's end is the end of a period.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.asynchronous.rules import Rule
from ringar.collectives.branches import act_if
from ringar.collectives.compiled import is_compiling
from ringar.collectives.shares import WHOLE
from ringar.errors import UnsupportedError
from ringar.job import membership
from ringar.keras import share
from ringar.keras.exchange import Exchange, LocalGradients, Period, Variables
from ringar.keras.reduction import Reduction, all_finite
from ringar.sharding import slots
from ringar.sharding.cut import cut_of

Steps = int | Callable[[tf.Tensor], tf.Tensor | int]
"""Steps between exchanges, or a function of the number of steps taken that returns them."""


class LocalSteps(Period):
    """Let each rank take steps of its own, and exchange parameters after every period.

    Args:
        period: the steps of a period.
        warmup_steps: the number of first steps whose periods have one step.
        rule: defines the averages and the new parameters.
        mean: how ranks average.
        with_slots: also average the optimizer's slots.
    """

    in_every_step = False

    def __init__(
        self, period: Steps, warmup_steps: int, rule: Rule, mean: Reduction, with_slots: bool
    ) -> None:
        self._period, self._warmup_steps = period, warmup_steps
        self._rule, self._mean, self._with_slots = rule, mean, with_slots
        self._optimizer: Any = None
        self._counts: _Counts | None = None
        self._rate: Any = None  # the learning rate of the step that is traced or runs
        self._end_period: Callable[[], tf.Tensor] = self._combine

    @property
    def counters(self) -> Sequence[Any]:
        """The counters of steps: this one's and the optimizer's."""
        if self._counts is None:
            return ()
        return [self._counts.steps, *(o.iterations for o in slots.with_nested(self._optimizer))]

    def build(self, optimizer: Any, variables: Sequence[Any] | None) -> None:
        """Make the state for `variables`, which are those of all steps."""
        if self._counts is not None:
            return
        if variables is None:
            raise ValueError(
                "`trainable_variables` must be passed with the gradients, or the optimizer be "
                "built: the variables are averaged. Received: trainable_variables=None"
            )
        if membership.is_elastic():
            raise UnsupportedError(
                "An elastic job (ringarrun --min-np) has no local steps: ranks that join would "
                "lack the beginning of their period. Use ringar.DistributedOptimizer there."
            )
        if any(cut_of(variable) is not None for variable in variables):
            raise UnsupportedError(
                "A model whose layers are cut has no local steps: ranks hold parts of it. Use "
                "ringar.DistributedOptimizer(..., grid=grid) there."
            )
        self._optimizer = optimizer
        with tf.init_scope():
            self._counts = _Counts()
            self._rule.build(list(variables))
        self.state = [*vars(self._counts).values(), *self._rule.state]

    def begin_step(self, gradients: Sequence[Any], variables: Variables, loss_scale: Any) -> None:
        """Begin a period, if this step is its first."""
        assert self._counts is not None
        act_if(self._counts.since.read_value() == 0, self._rule.begin)
        self._rate = keras.ops.convert_to_tensor(self._optimizer.learning_rate)

    def end_step(self) -> None:
        """Count the step, and end the period if it was the last one."""
        assert self._counts is not None
        rows = share.rows()
        are_known = isinstance(rows, tf.Tensor) or rows != WHOLE

        def end_period() -> tf.Tensor:
            return self._combine(are_known)

        compiled = is_compiling()
        self._end_period = (
            tf.function(end_period, jit_compile=True, autograph=False) if compiled else end_period
        )
        variables = self._rule.variables
        share.record(lambda _: end_period(), [None] * len(variables), variables)
        steps = self._counts.add(rows if are_known else 1.0)
        self._rule.note_step(self._rate, self._counts.since.read_value())
        act_if(self._counts.since.read_value() >= self._steps_of_period(steps), end_period)
        self._rate = None

    def flush(self) -> None:
        """End a period that has begun."""
        if self._counts is not None and int(self._counts.since) > 0:
            self._end_period()

    def settle(self) -> None:
        """Leave the model the weights that all ranks have in common."""
        if self._counts is not None:
            self._rule.settle()
            _constrain(self._rule.variables)

    def _steps_of_period(self, count: tf.Tensor) -> tf.Tensor:
        steps = self._period(count) if callable(self._period) else self._period
        steps = tf.maximum(tf.cast(steps, tf.int64), 1)
        return tf.where(count <= self._warmup_steps, tf.constant(1, tf.int64), steps)

    def _combine(self, rows_are_known: bool = True) -> tf.Tensor:
        """End a period; return the number of idle ranks, if this one is idle."""
        assert self._counts is not None
        if share.idle() is not None:
            self._rule.begin()  # a period without steps
        variables = self._rule.variables
        rows = self._counts.rows.read_value() if rows_are_known else WHOLE
        control = self._mean.control(rows, variables, begins_step=False)
        means, save_state = self._mean.reduce(
            self._rule.contributions(), variables, control=control
        )
        answer = share.take_answer()
        averaged = [*self._rule.averaged(), *self._averaged_slots()]
        their_means, _ = self._mean.plain("state").reduce(
            [tf.convert_to_tensor(variable) for variable in averaged], averaged, control=control
        )
        share.take_answer()

        def act() -> None:
            for variable, mean in zip(averaged, their_means, strict=True):
                variable.assign(mean)
            self._rule.combine(means)
            _constrain(variables)
            if save_state is not None:
                save_state(all_finite(means))

        if answer is None:
            act()
        else:  # where all ranks are idle, there is nothing to combine
            act_if(answer[1] < float(self._mean.size), act)
        self._counts.begin_period()
        return tf.zeros([]) if answer is None else answer[1]

    def _averaged_slots(self) -> list[Any]:
        """Return the slots of the optimizer that ranks average."""
        owners = slots.owners(self._optimizer)
        return [
            slot
            for slot, (owner, name) in zip(self._optimizer.variables, owners, strict=True)
            if owner is not None
            and slot.dtype == owner.dtype
            and (self._with_slots or name == slots.AVERAGES)  # the last of which `fit` assigns
        ]


def local_steps(
    period: Steps, warmup_steps: int, rule: Rule, mean: Reduction, with_slots: bool = False
) -> Exchange:
    """Return the exchange of ranks that take local steps; arguments are those of `LocalSteps`."""
    return Exchange(
        LocalGradients(mean.process_set),
        period=LocalSteps(period, warmup_steps, rule, mean, with_slots),
        description={
            "function": rule.function,
            "period": period,
            "warmup_steps": warmup_steps,
            **rule.description,
            "average": "parameters+slots" if with_slots else "parameters",
            "compression": mean.compression,
            "algorithm": mean.algorithm,
        },
        twin=lambda: local_steps(period, warmup_steps, rule.renewed(), mean.renewed(), with_slots),
    )


class _Counts:
    """Count this rank's steps.

    Attributes:
        steps: all of them.
        since: those of the period.
        rows: the rows of the period; the number of its steps, if rows are not known.
    """

    def __init__(self) -> None:
        self.steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="local_steps")
        self.since = tf.Variable(0, trainable=False, dtype=tf.int64, name="steps_of_period")
        self.rows = tf.Variable(0.0, trainable=False, name="rows_of_period")

    def add(self, rows: Any) -> tf.Tensor:
        """Count a step, and return the number of all."""
        self.since.assign_add(1)
        self.rows.assign_add(tf.cast(rows, tf.float32))
        self.steps.assign_add(1)
        return self.steps.read_value()

    def begin_period(self) -> None:
        """Begin to count a period."""
        self.since.assign(0)
        self.rows.assign(0.0)


def _constrain(variables: Sequence[Any]) -> None:
    """Apply the constraints of variables: an average of unit vectors is shorter."""
    for variable in variables:
        if getattr(variable, "constraint", None) is not None:
            variable.assign(variable.constraint(variable))
