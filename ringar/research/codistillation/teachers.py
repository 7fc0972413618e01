"""The teachers of codistillation: copies of the models of the other groups, and their refreshment.

Let a group have taken t steps. With t = burn_in, burn_in + period, burn_in + 2 period, ... all
ranks of the job *meet*: a sum of two numbers tells whether all of them have data. If so, the first
rank of each group broadcasts its weights. On one rank of g groups that is g broadcasts of the
model's size in a period, whatever the number of ranks in a group.

Meetings are collectives, which no rank may skip. Groups have their own numbers of batches, and
may stop in different epochs. The rules are

- A rank whose data has ended takes part in the meetings of its group's further steps, and tells so.
- At the end of an epoch a group meets the others once more, and tells so.
- After a meeting in which a rank had no data a group does not meet until its next epoch.
- At the end of its training a group tells that, and there are no further meetings.

So all ranks have equally many meetings. A group waits for another one for at most a period of that
group's steps, or the rest of its epoch; a group with fewer batches meets again in its next epoch.
As everything is in the order of the program, a run has the same bits each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import record as tape_record

from ringar.collectives import Sum, allreduce, grouped_broadcast
from ringar.collectives.branches import act_if
from ringar.job import place
from ringar.keras import share
from ringar.keras.exchange import Period


class Teachers:
    """Hold copies of the models of the other groups.

    Args:
        model: the built model of this rank.
        roots: the first rank of each group.
        group: the number of this rank's group.
        burn_in: the steps before the first meeting.
        period: the steps between meetings.
    """

    def __init__(
        self, model: keras.Model, roots: Sequence[int], group: int, burn_in: int, period: int
    ) -> None:
        self._model, self._roots, self._group = model, list(roots), group
        self._burn_in, self._period = burn_in, period
        # Weights of other dtypes, such as the state of a seed, stay the rank's own.
        self._copied = [v for v in model.weights if keras.backend.is_float_dtype(v.dtype)]
        with tf.init_scope():
            self._copies = [
                [_variable(tf.convert_to_tensor(v), f"teacher_{number}") for v in self._copied]
                if number != group
                else []
                for number in range(len(self._roots))
            ]
            self._steps = _variable(tf.constant(0, tf.int64), "steps")
            self._is_ready = _variable(tf.constant(False), "is_ready")
            self._is_closed = _variable(tf.constant(False), "is_closed")
            self._has_ended = _variable(tf.constant(False), "has_ended")

    @property
    def is_ready(self) -> tf.Tensor:
        """Whether the copies have been made."""
        return self._is_ready.read_value()

    def variables(self) -> list[tf.Variable]:
        """Return the state of a resumed run; `begin_training` sets the others."""
        copies = [variable for copies in self._copies for variable in copies]
        return [self._steps, self._is_ready, self._is_closed, *copies]

    # Predictions

    def predictions(self, x: Any, like: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        """Return the predictions of each teacher; the model's own while there is none.

        Args:
            x: the inputs of the model.
            like: the outputs of the model.
        """
        teachers = [copies for copies in self._copies if copies]

        def predict() -> list[tf.Tensor]:
            return [
                tf.cast(output, student.dtype)
                for copies in teachers
                for output, student in zip(self._predict(copies, x), like, strict=True)
            ]

        with tape_record.stop_recording():
            flat = tf.cond(self.is_ready, predict, lambda: [*like] * len(teachers))
        flat = [tf.stop_gradient(output) for output in flat]
        return [flat[i : i + len(like)] for i in range(0, len(flat), len(like))]

    def _predict(self, copies: Sequence[tf.Variable], x: Any) -> list[tf.Tensor]:
        value_of = {id(v): copy for v, copy in zip(self._copied, copies, strict=True)}

        def values(variables: Sequence[Any]) -> list[tf.Tensor]:
            return [tf.convert_to_tensor(value_of.get(id(v), v)) for v in variables]

        model = self._model
        training = {"training": False} if model._call_has_training_arg else {}
        outputs, _ = model.stateless_call(
            values(model.trainable_variables), values(model.non_trainable_variables), x, **training
        )
        return list(tf.nest.flatten(outputs))

    # Meetings

    def begin_training(self) -> None:
        """Begin a `fit`. All ranks of the job do so."""
        self._is_closed.assign(False)
        self._has_ended.assign(False)

    def begin_step(self) -> None:
        """Meet before the first step, where no burn-in comes before. Every rank has data there."""
        if self._burn_in == 0:
            with tape_record.stop_recording():
                act_if((self._steps.read_value() == 0) & ~self.is_ready, self._meet)

    def end_step(self, has_data: bool) -> None:
        """Count a step of the group, and meet if it is time.

        Args:
            has_data: whether this rank had a batch.
        """
        self._steps.assign_add(1)
        since = self._steps.read_value() - self._burn_in
        is_due = (since >= 0) & (since % self._period == 0)
        may = ~(self._is_closed.read_value() | self._has_ended.read_value())
        act_if(is_due & may, lambda: self._meet(has_data))

    def end_epoch(self) -> None:
        """Meet for the last time in this epoch. All ranks of the group have come here."""
        if not (bool(self._is_closed) or bool(self._has_ended)):
            self._meet(has_data=False)
        self._is_closed.assign(False)

    def end_training(self) -> None:
        """Meet for the last time. All ranks of the group have come here."""
        if not bool(self._has_ended):
            self._meet(has_data=False, ends=True)

    def _meet(self, has_data: bool = True, ends: bool = False) -> None:
        flags = tf.constant([float(has_data), float(ends)])
        counts = allreduce(flags, Sum, name="codistillation/ranks")
        have_all_data = counts[0] > place.size() - 0.5
        act_if(have_all_data, self._copy)
        self._is_closed.assign(~have_all_data)
        self._has_ended.assign(counts[1] > 0.5)

    def _copy(self) -> None:
        tensors = [tf.convert_to_tensor(variable) for variable in self._copied]
        for number, (root, copies) in enumerate(zip(self._roots, self._copies, strict=True)):
            values = grouped_broadcast(tensors, root, name=f"codistillation/weights_{number}")
            for copy, value in zip(copies, values, strict=False):  # none of this group
                copy.assign(value)
        self._is_ready.assign(True)


class TeacherSteps(Period):
    """Count the steps of a group for the teachers.

    Args:
        teachers: the teachers.
    """

    def __init__(self, teachers: Teachers) -> None:
        self._teachers, self.state = teachers, teachers.variables()

    def end_step(self) -> None:
        """Count the step."""

        def without_data(_: Sequence[Any]) -> tf.Tensor:
            self._teachers.end_step(has_data=False)
            return tf.zeros([])

        if share.current() is not None:  # a rank without data learns of steps from Keras' alone
            share.record(without_data, [], [])
        self._teachers.end_step(has_data=True)

    def settle(self) -> None:
        """End the epoch."""
        self._teachers.end_epoch()


def _variable(value: tf.Tensor, name: str) -> tf.Variable:
    return tf.Variable(value, trainable=False, name=name)
