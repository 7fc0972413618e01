"""PowerSGD, the act: the state of an optimizer's variables, and a step with it.

The steps and their names are those of `ringar.collectives.powersgd`. The state is each rank's own
(errors differ between ranks; Q does not) and no part of `optimizer.variables`: the broadcast when
training begins must not give all ranks the errors of one, and a saved model is to load as the
optimizer it is, without ringar. A run that is resumed from a file thus begins with no errors: what
one step had not yet sent is lost, as if that step's batch had been a little smaller.

The state is in units of the true gradient, whatever a loss scale has made of it, for that scale may
change from step to step. And it stays as it was in a step whose reduced gradients are not all
finite: such a step is one that a `LossScaleOptimizer` skips, on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ringar.collectives.powersgd import PowerSGD, matrix_shape

Exchange = Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]
"""A grouped allreduce: a result per tensor."""


@dataclass(frozen=True)
class _State:
    """Keep the state of one variable.

    Attributes:
        variable: the variable itself, so that nothing else gets its `id`.
        q: the Q of the step before [columns, rank].
        error: what has not been sent yet [rows, columns]; None without error feedback.
    """

    variable: Any
    q: tf.Variable
    error: tf.Variable | None


class LowRank:
    """Keep the state of PowerSGD for the variables of one optimizer."""

    def __init__(self, settings: PowerSGD) -> None:
        self.settings = settings
        self._states: dict[int, _State] = {}

    def compresses(self, gradient: tf.Tensor) -> bool:
        """Return whether `gradient` is one that is compressed."""
        if not gradient.shape.is_fully_defined():
            return False
        return self.settings.factor_rank(gradient.shape.as_list(), gradient.dtype.name) > 0

    def reduce(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[Any],
        average: Exchange,
        combine: Exchange,
        loss_scale: Any = None,
    ) -> tuple[list[tf.Tensor], Callable[[tf.Tensor], None]]:
        """Reduce gradients that `compresses` accepts.

        Args:
            gradients: this rank's.
            variables: the variable of each.
            average: the mean over the ranks, for P.
            combine: for Q: what is to become of the gradients, a mean or a sum, scaled or not.
            loss_scale: what gradients were multiplied by; None: by nothing.

        Returns:
            The reduced gradients, times `loss_scale` as those given were; and a function that
            writes the new state, where its argument, a bool, is true.
        """
        states = [self._state_of(v, g) for v, g in zip(variables, gradients, strict=True)]
        matrices = [_matrix(g, s, loss_scale) for g, s in zip(gradients, states, strict=True)]
        p = average([m @ s.q for m, s in zip(matrices, states, strict=True)])
        bases = _bases(p)
        own = [tf.matmul(m, b, transpose_a=True) for m, b in zip(matrices, bases, strict=True)]
        q = combine(own)
        results = []
        for gradient, basis, factor in zip(gradients, bases, q, strict=True):
            result = tf.matmul(basis, factor, transpose_b=True)
            if loss_scale is not None:
                result *= tf.cast(loss_scale, result.dtype)
            results.append(tf.reshape(result, gradient.shape))

        def save_state(where: tf.Tensor) -> None:
            for state, m, b, own_q, mean_q in zip(states, matrices, bases, own, q, strict=True):
                state.q.assign(tf.where(where, mean_q, state.q))
                if state.error is not None:
                    error = m - tf.matmul(b, own_q, transpose_b=True)
                    state.error.assign(tf.where(where, error, state.error))

        return results, save_state

    def _state_of(self, variable: Any, gradient: tf.Tensor) -> _State:
        if id(variable) not in self._states:
            shape, dtype = gradient.shape.as_list(), gradient.dtype
            rows, columns = matrix_shape(shape)
            rank = self.settings.factor_rank(shape, dtype.name)
            first = self.settings.first_q(len(self._states), columns, rank)
            with tf.init_scope():  # outside of a function that is being traced
                q = tf.Variable(first.astype(dtype.as_numpy_dtype), trainable=False)
                error = None
                if self.settings.error_feedback:
                    nothing = np.zeros((rows, columns), dtype.as_numpy_dtype)
                    error = tf.Variable(nothing, trainable=False)
            self._states[id(variable)] = _State(variable, q, error)
        return self._states[id(variable)]


def _matrix(gradient: tf.Tensor, state: _State, loss_scale: Any) -> tf.Tensor:
    matrix = tf.reshape(gradient, matrix_shape(gradient.shape.as_list()))
    if loss_scale is not None:
        matrix /= tf.cast(loss_scale, matrix.dtype)
    return matrix if state.error is None else matrix + state.error


def _bases(p: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return an orthonormal basis of the columns of each matrix, in the matrix' shape.

    Householder's method finds a full one even where columns are zero, for a gradient that is zero
    at first, say. Else Q became zero as well, and remained so.
    """
    alike: dict[Any, list[int]] = {}
    for place, columns in enumerate(p):
        alike.setdefault((columns.dtype, tuple(columns.shape)), []).append(place)
    bases: list[Any] = [None] * len(p)
    for places in alike.values():  # together: XLA takes 0.1 s to compile each decomposition
        stacked = tf.linalg.qr(tf.stack([p[place] for place in places])).q
        for place, basis in zip(places, tf.unstack(stacked), strict=True):
            bases[place] = basis
    return bases
