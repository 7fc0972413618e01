"""The common part of the optimizers of a parameter server's workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringar.asynchronous.parameter_server import ParameterServer
from ringar.collectives.branches import act_if
from ringar.collectives.host_call import host_call
from ringar.errors import UnsupportedError
from ringar.job import place
from ringar.keras.exchange import Exchange, Period, Reducer
from ringar.sharding.slots import with_nested


class Replication(Period):
    """Exchange with a parameter server: the base of its kinds.

    Args:
        server: the server.
    """

    in_every_step = False
    meets = False

    def __init__(self, server: ParameterServer) -> None:
        self._server = server
        self._optimizer: Any = None

    def build(self, optimizer: Any, variables: Sequence[Any] | None) -> None:
        """Check that the optimizer trains the server's variables."""
        if self._optimizer is None:
            self._server.check_variables(variables)
            _check_averages(optimizer, self._server.optimizer)
            self._optimizer = optimizer

    def newest(self) -> list[np.ndarray]:
        """Return the parameters of the server, with all that this worker has to push."""
        raise NotImplementedError

    def begin_epoch(self) -> None:
        """Begin an epoch with the newest parameters: those of the model may be another worker's."""
        self.settle()

    def settle(self) -> None:
        """Give the model the newest parameters."""
        for variable, value in zip(self._server.variables, self.newest(), strict=True):
            variable.assign(value)

    def replace(
        self, is_due: tf.Tensor, values: Callable[..., list[np.ndarray]], inputs: Sequence[Any] = ()
    ) -> None:
        """Give the model other parameters, if they are due; in a graph or at once.

        Args:
            is_due: a bool.
            values: returns the parameters.
            inputs: the arguments of `values`: tensors, or variables.
        """
        variables = self._server.variables

        def act() -> None:
            results = [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]
            parameters = host_call(values, inputs, results, "parameter server")
            for variable, value in zip(variables, parameters, strict=True):
                variable.assign(value)

        act_if(is_due, act)


def replicating(
    replication: Replication, reduction: Reducer, description: dict[str, object]
) -> Exchange:
    """Return the exchange of a parameter server's worker, which cannot be copied.

    Args:
        replication: when the worker exchanges, and what.
        reduction: what becomes of its gradients.
        description: the settings that must be the same on all workers.
    """
    return Exchange(reduction, period=replication, description=description, twin=_refuse_copy)


def _refuse_copy() -> Exchange:
    raise UnsupportedError(
        f"rank {place.rank()} | parameter server: expected the worker's one optimizer; "
        "received a copy. Compile the model that the server was made for."
    )


def _check_averages(optimizer: Any, of_server: Any) -> None:
    """Expect moving averages of the server, if there are any: its weights are final."""
    averages = any(nested.use_ema for nested in with_nested(optimizer))
    if averages and not any(nested.use_ema for nested in with_nested(of_server)):
        raise UnsupportedError(
            f"rank {place.rank()} | parameter server: expected use_ema=True of the server's "
            "optimizer, whose weights are final; received it of the worker's alone. Pass it to the "
            "optimizer of ringar.ParameterServer."
        )
