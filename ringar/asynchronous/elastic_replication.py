"""Elastic averaging through a parameter server, which holds the center: asynchronous EASGD.

Zhang, Choromanska and LeCun 2015, algorithm 1. A worker exchanges with the center by itself, after
every period of its own steps: d = alpha (x - center), then x <- x - d, and center <- center + d.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from ringar.asynchronous.parameter_server import ParameterServer
from ringar.asynchronous.replication import Replication
from ringar.collectives.host_call import host_call


class ElasticReplication(Replication):
    """Draw a worker's parameters and the server's towards each other.

    Args:
        server: the server. Its optimizer subtracts pushes, as `SGD(1.0)` does.
        period: the steps between exchanges.
        alpha: the part of the difference by which both move.
    """

    def __init__(self, server: ParameterServer, period: int, alpha: float) -> None:
        super().__init__(server)
        self._period, self._alpha = period, alpha
        self._since = 0  # the steps of the period

    def end_step(self) -> None:
        """Count the step, and exchange after the last one of a period."""

        def count() -> list[np.ndarray]:
            self._since += 1
            return [np.asarray(self._since >= self._period)]

        is_due = host_call(count, [], [tf.TensorSpec([], tf.bool)], "EASGD")[0]
        self.replace(is_due, self._move, self._server.variables)

    def newest(self) -> list[np.ndarray]:
        """End a period that has begun, and return the center."""
        self.finish()
        return self._server.replica.pull().values

    def finish(self) -> None:
        """End a period that has begun: move the center."""
        if self._since > 0:
            self._move(*(keras.ops.convert_to_numpy(v) for v in self._server.variables))

    def _move(self, *values: np.ndarray) -> list[np.ndarray]:
        """Move the center to these parameters, and return them moved to the center."""
        self._since = 0
        center, versions = self._server.replica.pull()
        moves = [x.dtype.type(self._alpha) * (x - y) for x, y in zip(values, center, strict=True)]
        self._server.replica.push([-move for move in moves], versions)
        return [x - move for x, move in zip(values, moves, strict=True)]
