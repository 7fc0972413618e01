"""What the optimizers of a parameter server's workers have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tensorflow as tf

from ringar.asynchronous.parameter_server import ParameterServer
from ringar.collectives import Average
from ringar.collectives.host_call import host_call
from ringar.errors import UnsupportedError
from ringar.job import place
from ringar.keras.exchange import Exchange
from ringar.sharding.slots import with_nested

if TYPE_CHECKING:
    from ringar.job.process_sets import ProcessSet


class Replication(Exchange):
    """Exchange with a parameter server: what its kinds have in common.

    Args:
        server: the server.
    """

    in_every_step = False
    meets = False
    op = Average
    is_alone: ClassVar[bool] = False

    def __init__(self, server: ParameterServer) -> None:
        self.process_set: ProcessSet | None = server.workers
        self._server = server
        self._optimizer: Any = None

    def renewed(self) -> Replication:
        """Refuse a copy: a worker has one replica."""
        raise UnsupportedError(
            f"rank {place.rank()} | parameter server: expected one optimizer for a worker; "
            "received a copy of it. Compile the model that the server was made for."
        )

    def build(self, optimizer: Any, variables: Sequence[Any] | None) -> None:
        """Look whether the optimizer trains what the server has."""
        if self._optimizer is None:
            self._server.check_variables(variables)
            _check_averages(optimizer, self._server.optimizer)
            self._optimizer = optimizer

    def newest(self) -> list[np.ndarray]:
        """Return the parameters of the server, with all that this worker has to push."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin an epoch with the newest parameters: those of the model may be another worker's."""
        self.settle()

    def settle(self) -> None:
        """Give the model the newest parameters."""
        for variable, value in zip(self._server.variables, self.newest(), strict=True):
            variable.assign(value)

    def replace(
        self, is_due: tf.Tensor, values: Callable[..., list[np.ndarray]], inputs: Sequence[Any] = ()
    ) -> None:
        """Give the model other parameters, if a step has made it due; in a graph or at once.

        Args:
            is_due: a bool.
            values: returns them.
            inputs: the arguments of `values`: tensors, or variables.
        """
        variables = self._server.variables

        def act() -> tf.Tensor:
            results = [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]
            found = host_call(values, inputs, results, "parameter server")
            for variable, value in zip(variables, found, strict=True):
                variable.assign(value)
            return tf.constant(0)

        tf.cond(is_due, act, lambda: tf.constant(0))


def _check_averages(optimizer: Any, of_server: Any) -> None:
    """Expect moving averages of the server, if there are any: its weights are final."""
    averages = any(one.use_ema for one in with_nested(optimizer))
    if averages and not any(one.use_ema for one in with_nested(of_server)):
        raise UnsupportedError(
            f"rank {place.rank()} | parameter server: expected use_ema=True of the server's "
            "optimizer, whose weights are final; received it of the worker's alone. Pass it to the "
            "optimizer of ringar.ParameterServer."
        )
