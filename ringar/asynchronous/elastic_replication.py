"""Elastic averaging through a parameter server, which holds the center: asynchronous EASGD.

Zhang, Choromanska and LeCun 2015, algorithm 1. A worker exchanges with the center by itself, after
every period of its own steps: d = alpha (x - center), then x <- x - d, and center <- center + d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringar.asynchronous.parameter_server import ParameterServer
from ringar.asynchronous.replication import Replication
from ringar.collectives.host_call import host_call


class ElasticReplication(Replication):
    """Draw a worker's parameters and the server's to each other.

    Args:
        server: the server. Its optimizer subtracts what is pushed, as `SGD(1.0)` does.
        period: the steps between exchanges.
        alpha: the part of the difference by which both move.
    """

    def __init__(self, server: ParameterServer, period: int, alpha: float) -> None:
        super().__init__(server)
        self._period, self._alpha = period, alpha
        self._steps = self._since = 0  # those of the period
        self._gradients: list[Any] = []  # of the step that is traced or runs

    @property
    def description(self) -> dict[str, object]:
        """The settings that must be the same on all workers."""
        return {"function": "ringar.EASGD", "beta": self._alpha * self._server.workers.size()}

    @tf.autograph.experimental.do_not_convert
    def __call__(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any] | None = None,
        loss_scale: tf.Tensor | None = None,
    ) -> list[Any]:
        """Return the gradients as they are."""
        self._gradients = [gradient for gradient in gradients if gradient is not None]
        return list(gradients)

    @tf.autograph.experimental.do_not_convert
    def after(self) -> None:
        """Count the step, and exchange behind the last one of a period."""

        def count() -> list[np.ndarray]:
            self._steps += 1
            self._since += 1
            return [np.asarray(self._since >= self._period)]

        # A graph whose iterator has ended runs what does not depend on the batch: no step to count.
        with tf.control_dependencies(tf.nest.flatten(self._gradients, expand_composites=True)):
            is_due = host_call(count, [], [tf.TensorSpec([], tf.bool)], "EASGD")[0]
        self._gradients = []
        self.replace(is_due, self._move, self._server.variables)

    def newest(self) -> list[np.ndarray]:
        """End a period that has begun, and return the center."""
        self.finish()
        return self._server.replica.pull().values

    def finish(self) -> None:
        """End a period that has begun: move the center."""
        if self._since > 0:
            self._move(*(keras.ops.convert_to_numpy(v) for v in self._server.variables))

    def steps(self) -> int:
        """Return the number of steps of this worker."""
        return self._steps

    def _move(self, *values: np.ndarray) -> list[np.ndarray]:
        """Move the center to these parameters, and return them moved to the center."""
        self._since = 0
        center, versions = self._server.replica.pull()
        moves = [
            x.dtype.type(self._alpha) * (x - its) for x, its in zip(values, center, strict=True)
        ]
        self._server.replica.push([-move for move in moves], versions)
        return [x - move for x, move in zip(values, moves, strict=True)]
