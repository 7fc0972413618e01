"""Gradients that are added up over several passes before the ranks reduce them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.collectives.branches import act_if
from ringar.horovod.common.process_sets import global_process_set
from ringar.horovod.tensorflow.local_variables import LocalVariables
from ringar.job.process_sets import ProcessSet

Reduce = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


class LocalGradientAggregationHelper:
    """Add up gradients on this rank, and reduce them after a number of passes.

    One class serves eager code and functions, where Horovod has two.

    Args:
        backward_passes_per_step: the passes of a step.
        allreduce_func: reduces gradients, given them and their variables.
        sparse_as_dense: add up `tf.IndexedSlices` as dense gradients, instead of refusing them.
        average_aggregated_gradients: divide the sum by the number of passes.
        rank: no effect.
        optimizer_type: no effect.
        process_set: the ranks that reduce.
        scale_local_gradients: divide gradients of local variables by the number of ranks.
        name: no effect.

    Attributes:
        counter: the passes since the last reduction.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Reduce,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: object,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        if backward_passes_per_step < 1:
            raise ValueError(
                "`backward_passes_per_step` must be 1 or more. "
                f"Received: {backward_passes_per_step}"
            )
        self.backward_passes_per_step = backward_passes_per_step
        self.allreduce_grads = allreduce_func
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self._local = LocalVariables(process_set, scale_local_gradients)
        self._sums: dict[int, tf.Variable] = {}
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False, name="backward_passes")

    def register_local_var(self, var: Any) -> None:
        """Keep the gradients of a variable on this rank."""
        self._local.register(var)

    def build(self, vars: Sequence[Any]) -> None:
        """Make the sums for the gradients of variables, unless they are there."""
        for index, var in enumerate(vars):
            self._sum_of(index, var)

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Add gradients to the sums; return the sums, reduced and cleared after the last pass.

        Args:
            grads: tensors, `tf.IndexedSlices` or None.
            vars: their variables.
        """
        for index, grad in enumerate(grads):
            if grad is not None:
                self._sum_of(index, grad).assign_add(self._dense(grad))
        self.counter.assign_add(1)
        sums = [None if g is None else self._sums[i].read_value() for i, g in enumerate(grads)]

        def reduced() -> list[tf.Tensor]:
            results = self._local.reduce(sums, vars, self.allreduce_grads)
            for total in self._sums.values():
                total.assign(tf.zeros_like(total))
            self.counter.assign(0)
            return [self._averaged(result) for result in results if result is not None]

        present = tf.cond(
            tf.equal(self.counter, self.backward_passes_per_step),
            reduced,
            lambda: [tf.identity(total) for total in sums if total is not None],
        )
        following = iter(tf.nest.flatten(present))
        return [None if total is None else next(following) for total in sums]

    def apply_gradients(
        self,
        apply_grads_closure: Callable[[], Any],
        optimizer: keras.optimizers.Optimizer,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Apply gradients if this pass was the last of a step; else count the pass only.

        Args:
            apply_grads_closure: applies them.
            optimizer: whose `iterations` count all passes.
            *args: no effect.
            **kwargs: no effect.
        """
        act_if(self.is_due(), apply_grads_closure, lambda: optimizer.iterations.assign_add(1))

    def is_due(self) -> tf.Tensor:
        """Return whether the last pass has reduced gradients."""
        return tf.equal(self.counter, 0)

    def variables(self) -> list[tf.Variable]:
        """Return the sums, and the count of passes."""
        return [self.counter, *self._sums.values()]

    def _sum_of(self, index: int, like: Any) -> tf.Variable:
        if index not in self._sums:
            shape, dtype = tuple(like.shape), tf.as_dtype(like.dtype)
            with tf.init_scope():
                self._sums[index] = tf.Variable(
                    tf.zeros(shape, dtype), trainable=False, name="aggregated_gradient"
                )
        return self._sums[index]

    def _dense(self, grad: Any) -> tf.Tensor:
        if isinstance(grad, tf.IndexedSlices) and not self.sparse_as_dense:
            raise ValueError(
                "`backward_passes_per_step` above 1 expected dense gradients, received "
                "tf.IndexedSlices; pass sparse_as_dense=True"
            )
        return tf.convert_to_tensor(grad)

    def _averaged(self, grad: tf.Tensor) -> tf.Tensor:
        if not self.average_aggregated_gradients:
            return grad
        return grad / tf.cast(self.backward_passes_per_step, grad.dtype)
