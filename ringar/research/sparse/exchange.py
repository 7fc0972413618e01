"""The messages of a sparse net: states forward, their gradients back, and the join of its outputs.

Each neuron's state goes once to each rank that reads it, in one all-to-all with uneven rows, and
the gradient of each received state goes back the same way: as many words in both directions as the
partition's km1 (`ringar.parallel.sparse.partition`). A layer for which nothing is sent has no
message. Behind the join all ranks hold all outputs and compute the same loss, so that nothing goes
back through it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ringar.collectives import allgather, alltoall
from ringar.research.sparse.plan import LayerPlan
from ringar.sharding.grid import Grid

Backward = Callable[[tf.Tensor], tf.Tensor]


class Exchange:
    """Bring the states of ghosts before a layer.

    Args:
        plan: this rank's part of the layer.
        grid: the grid whose model group has the parts.
        name: of the messages, the same on all ranks.
    """

    def __init__(self, plan: LayerPlan, grid: Grid, name: str) -> None:
        self._ranks, self._name = grid.model_set, name
        self._has_messages = plan.words > 0
        self._own_inputs, self._ghosts = plan.own_inputs, plan.ghosts
        self._send_counts, self._receive_counts = plan.send_counts, plan.receive_counts
        with tf.init_scope():
            self._send = tf.constant(plan.send)

    def __call__(self, states: tf.Tensor) -> tf.Tensor:
        """Return the states of the ghosts, [ghosts, examples].

        Args:
            states: those of this rank's neurons, [own inputs, examples].
        """
        if not self._has_messages:
            return tf.zeros([0, tf.shape(states)[1]], states.dtype)

        @tf.custom_gradient
        def bring(states: tf.Tensor) -> tuple[tf.Tensor, Backward]:
            def backward(upstream: tf.Tensor) -> tf.Tensor:
                back = self._exchange(upstream, self._receive_counts, "gradients")
                return tf.math.unsorted_segment_sum(back, self._send, self._own_inputs)

            ghosts = self._exchange(tf.gather(states, self._send), self._send_counts, "states")
            ghosts.set_shape([self._ghosts, states.shape[1]])
            return ghosts, backward

        return bring(states)

    def _exchange(self, rows: tf.Tensor, counts: np.ndarray, kind: str) -> tf.Tensor:
        name = f"{self._name}/{kind}"
        return alltoall(rows, counts, name=name, process_set=self._ranks)[0]


class Join:
    """Gather the outputs of all neurons of the last layer on every rank.

    Args:
        owners: the part of each neuron.
        grid: the grid whose model group has the parts.
        name: of the message, the same on all ranks.
    """

    def __init__(self, owners: np.ndarray, grid: Grid, name: str) -> None:
        self._grid, self._name = grid, name
        order = np.argsort(owners, kind="stable")  # of the rows that are gathered
        with tf.init_scope():
            self._own_neurons = tf.constant(np.flatnonzero(owners == grid.part).astype(np.int32))
            self._place = tf.constant(np.argsort(order).astype(np.int32))
        self._neurons = len(owners)

    def __call__(self, states: tf.Tensor) -> tf.Tensor:
        """Return the outputs of all neurons, [examples, neurons].

        Args:
            states: those of this rank's neurons, [rows, examples].
        """
        if self._grid.model == 1:
            return tf.transpose(states)

        @tf.custom_gradient
        def join(states: tf.Tensor) -> tuple[tf.Tensor, Backward]:
            def backward(upstream: tf.Tensor) -> tf.Tensor:
                return tf.transpose(tf.gather(upstream, self._own_neurons, axis=1))

            rows = allgather(states, name=self._name, process_set=self._grid.model_set)
            outputs = tf.transpose(tf.gather(rows, self._place))
            outputs.set_shape([states.shape[1], self._neurons])
            return outputs, backward

        return join(states)
