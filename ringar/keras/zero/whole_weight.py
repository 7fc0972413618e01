"""A whole weight of a layer that is called, in the form of a variable of TensorFlow.

`tf.GradientTape`, `tf.recompute_grad`, `keras.remat` and other functions by `tf.custom_gradient`
find weights by watching variables. In a layer whose weights are gathered these are tensors. So each
reading announces the tensor as a variable whose handle is the tensor.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.util import object_identity

from ringar.keras.zero import graphs


class WholeWeight(tf.Variable, tf.__internal__.types.Tensor):
    """Present a whole weight as a variable.

    Args:
        variable: the sharded variable of Keras.
        weight: the tensor.
    """

    _should_act_as_resource_variable = True
    trainable = True

    def __init__(self, variable: Any, weight: tf.Tensor) -> None:
        self.variable, self._weight = variable, weight

    @property
    def handle(self) -> tf.Tensor:
        """The whole weight, in the function under construction."""
        return graphs.read(self._weight, self.name)

    def announce(self) -> None:
        """Tell tapes, and functions with gradients of their own, that they read the weight."""
        _ = self.handle  # may raise, and an error within the tapes would be lost
        if self.variable.trainable:
            pywrap_tfe.TFE_Py_TapeVariableAccessed(self)
            pywrap_tfe.TFE_Py_VariableWatcherVariableAccessed(self)

    @property
    def name(self) -> str:
        """The variable's path."""
        return str(self.variable.path)

    @property
    def dtype(self) -> tf.DType:
        """The dtype in which the layer reads the weight."""
        return self._weight.dtype

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the whole weight."""
        return self._weight.shape

    def ref(self) -> Any:
        """Return a hashable reference, as `tf.Variable.ref` does."""
        return object_identity.Reference(self)

    def value(self) -> tf.Tensor:
        """Return the whole weight."""
        return self.handle

    read_value = value

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return self.handle if dtype is None else tf.cast(self.handle, dtype)

    def __repr__(self) -> str:
        return f"<whole weight of {self.name}>"
