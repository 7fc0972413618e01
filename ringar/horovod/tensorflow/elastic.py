"""Horovod's elastic training for TensorFlow: `run`, and the states of models and variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringar import elastic
from ringar.collectives.call import has_bound_graphs
from ringar.elastic.comparison import Compared
from ringar.horovod.common.elastic import ObjectState, State, run_fn
from ringar.horovod.common.job import rank
from ringar.horovod.tensorflow.functions import broadcast_object

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Make a training function go on after ranks were lost, left or joined.

    Args:
        func: takes a state first, begins where the state says, and commits it from time to time.
    """
    return run_fn(func)


class TensorFlowKerasState(ObjectState, elastic.KerasState):
    """Keep a model of Keras, its optimizer, and further objects.

    Args:
        model: a built model.
        optimizer: its optimizer, if it was not compiled with one.
        backend: no effect.
        **kwargs: attributes of the state, such as `batch=0, epoch=0`.

    Raises:
        ValueError: the model is not built.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer | None = None,
        backend: object = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(broadcast_object, rank, model=model, optimizer=optimizer, **kwargs)
        self.optimizer = optimizer or model.optimizer
        self.backend = backend
        self.save()

    def on_reset(self) -> None:
        """Trace the training step anew, if it holds the number of ranks."""
        if has_bound_graphs():
            self.model.train_function = None
        super().on_reset()


class TensorFlowState(ObjectState):
    """Keep variables of TensorFlow, and further objects.

    Args:
        variables: the variables, in one order on all ranks.
        session: None: eager code needs none.
        **kwargs: attributes of the state.

    Raises:
        ValueError: no variables, or a session.
    """

    def __init__(
        self,
        variables: Iterable[tf.Variable] | None = None,
        session: object = None,
        **kwargs: Any,
    ) -> None:
        if not variables or session is not None:
            raise ValueError(
                "TensorFlowState expected variables and no session, received "
                f"variables={variables!r}, session={session!r}; eager code has no global variables"
            )
        self.variables = list(variables)
        self.session = session
        self._values: list[np.ndarray] = []
        super().__init__(broadcast_object, rank, **kwargs)
        self.save()

    def save(self) -> None:
        """Copy the objects and the variables."""
        super().save()
        self._values = [np.array(tf.convert_to_tensor(variable)) for variable in self.variables]

    def restore(self) -> None:
        """Give objects and variables the values that they had in the last commit."""
        super().restore()
        for variable, value in zip(self.variables, self._values, strict=True):
            variable.assign(value)

    def compared(self) -> Compared:
        """Return digests of the variables."""
        return Compared.of(self.variables)

    def packed(self) -> object:
        """Return the copies."""
        return super().packed(), self._values

    def unpack(self, packed: Any) -> None:
        """Take the copies of another rank."""
        objects, self._values = packed
        super().unpack(objects)

    def layout(self) -> Mapping[str, str]:
        """Return the names of the objects, and the shapes of the variables."""
        shapes = (f"{variable.dtype.name}{variable.shape.as_list()}" for variable in self.variables)
        return {**super().layout(), **{f"variable {n}": text for n, text in enumerate(shapes)}}
