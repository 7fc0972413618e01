"""The PowerSGD step of an optimizer, and the state that it keeps for each variable.

`ringar.collectives.powersgd` describes the algorithm and its names. Each rank has state of its own:
errors differ between ranks, Q does not. The state is not in `optimizer.variables`, since the
broadcast at the start of training must not give all ranks the errors of one rank, and a saved model
must load without ringar. A run that is resumed from a file therefore begins with errors of 0; the
part of one step's gradient that was not yet sent is lost.

The state is in units of the unscaled gradient, because a loss scale may change from step to step.
A step whose reduced gradients are not all finite leaves the state unchanged: a
`LossScaleOptimizer` skips such a step on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from ringar.collectives.powersgd import PowerSGD, matrix_shape

if TYPE_CHECKING:
    import keras


Combine = Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]
"""A grouped allreduce: a result per tensor."""


@dataclass(frozen=True)
class _State:
    """Hold the state of one variable.

    Attributes:
        variable: the variable; the reference keeps its `id` unique.
        q: the Q of the previous step [columns, rank].
        error: the part of the gradients that was not sent [rows, columns]; None without error
            feedback.
    """

    variable: keras.Variable
    q: tf.Variable
    error: tf.Variable | None


class LowRank:
    """Reduce gradients by PowerSGD, and hold its state for the variables of one optimizer."""

    def __init__(self, settings: PowerSGD) -> None:
        self.settings = settings
        self._states: dict[int, _State] = {}

    def compresses(self, gradient: tf.Tensor) -> bool:
        """Return whether PowerSGD compresses `gradient`."""
        if not gradient.shape.is_fully_defined():
            return False
        return self.settings.factor_rank(gradient.shape.as_list(), gradient.dtype.name) > 0

    def reduce(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[Any],
        average: Combine,
        combine: Combine,
        loss_scale: tf.Tensor | None = None,
    ) -> tuple[list[tf.Tensor], Callable[[tf.Tensor], None]]:
        """Reduce gradients that `compresses` accepts.

        Args:
            gradients: the gradients of this rank.
            variables: their variables.
            average: the reduction of P, a mean over the ranks.
            combine: the reduction of Q: that of the gradients, a mean or a sum, scaled or not.
            loss_scale: the factor in the gradients; None is 1.

        Returns:
            The reduced gradients, with the factor `loss_scale`, and a function that writes the new
            state if its argument, a bool, is true.
        """
        states = [self._state_of(v, g) for v, g in zip(variables, gradients, strict=True)]
        matrices = [_matrix(g, s, loss_scale) for g, s in zip(gradients, states, strict=True)]
        p = average([m @ s.q for m, s in zip(matrices, states, strict=True)])
        bases = _bases(p)
        factors = [tf.matmul(m, b, transpose_a=True) for m, b in zip(matrices, bases, strict=True)]
        q = combine(factors)
        results = []
        for gradient, basis, factor in zip(gradients, bases, q, strict=True):
            result = tf.matmul(basis, factor, transpose_b=True)
            if loss_scale is not None:
                result *= tf.cast(loss_scale, result.dtype)
            results.append(tf.reshape(result, gradient.shape))

        def save_state(where: tf.Tensor) -> None:
            for state, m, b, own_q, mean_q in zip(states, matrices, bases, factors, q, strict=True):
                state.q.assign(tf.where(where, mean_q, state.q))
                if state.error is not None:
                    error = m - tf.matmul(b, own_q, transpose_b=True)
                    state.error.assign(tf.where(where, error, state.error))

        return results, save_state

    def _state_of(self, variable: keras.Variable, gradient: tf.Tensor) -> _State:
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


def _matrix(gradient: tf.Tensor, state: _State, loss_scale: tf.Tensor | None) -> tf.Tensor:
    matrix = tf.reshape(gradient, matrix_shape(gradient.shape.as_list()))
    if loss_scale is not None:
        matrix /= tf.cast(loss_scale, matrix.dtype)
    return matrix if state.error is None else matrix + state.error


def _bases(p: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return an orthonormal basis of the columns of each matrix, in the matrix' shape.

    Householder's method returns a full basis even if columns are zero, as for a first gradient of
    zeros. Otherwise Q would become zero and remain so.
    """
    alike: dict[tuple[tf.DType, tuple[int, ...]], list[int]] = {}
    for place, columns in enumerate(p):
        alike.setdefault((columns.dtype, tuple(columns.shape)), []).append(place)
    bases: list[Any] = [None] * len(p)
    for places in alike.values():  # together: XLA takes 0.1 s to compile each decomposition
        stacked = tf.linalg.qr(tf.stack([p[place] for place in places])).q
        for place, basis in zip(places, tf.unstack(stacked), strict=True):
            bases[place] = basis
    return bases
