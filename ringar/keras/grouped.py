"""Layers of groups: a group's kernels read the channels of the same group in the layer before.

On one process they compute what a split layer with `reads="own"` computes on a grid. Groups are
computed one after the other. Keras' own `Conv2D(groups=...)` runs on CPUs through a function that
XLA compiles, even in graphs that are not compiled: a step of AlexNet takes 1.7 times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="ringar")
class GroupedConv2D(keras.layers.Conv2D):
    """Convolve in groups: a `keras.layers.Conv2D` that computes one convolution per group.

    Arguments, shapes, variables and results are those of `Conv2D`.
    """

    def convolution_op(self, inputs: tf.Tensor, kernel: keras.Variable) -> tf.Tensor:
        """Return the convolution without bias and activation."""
        if self.groups == 1:
            return self.convolve(inputs, kernel)
        axis = 1 if self.data_format == "channels_first" else -1
        parts = zip(
            tf.split(inputs, self.groups, axis),
            tf.split(tf.convert_to_tensor(kernel), self.groups, -1),
            strict=True,
        )
        return tf.concat([self.convolve(x, k) for x, k in parts], axis)

    def convolve(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Return the convolution of one group."""
        return super().convolution_op(inputs, kernel)


@keras.saving.register_keras_serializable(package="ringar")
class GroupedDense(keras.layers.Dense):
    """Connect in groups: a `keras.layers.Dense` whose units read only their group's inputs.

    On one process it computes what a `SplitDense` with `reads="own"` computes on a grid.

    Args:
        units: the number of units of all groups.
        groups: the number of groups, which divides `units` and the inputs.
        **kwargs: as for `Dense`.
    """

    def __init__(self, units: int, groups: int = 1, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)
        if groups < 1 or units % groups:
            raise ValueError(
                f"`groups` must divide `units`. Received: groups={groups}, units={units}"
            )
        self.groups = groups

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Make a kernel of shape `(inputs / groups, units)`."""
        inputs = input_shape[-1]
        if inputs is None or inputs % self.groups:
            raise ValueError(
                f"`groups` must divide the inputs. Received: groups={self.groups}, {input_shape}"
            )
        super().build((*input_shape[:-1], inputs // self.groups))
        self.input_spec = None

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the units of all groups."""
        outputs = self.multiply(inputs)
        if self.bias is not None:
            outputs = outputs + tf.cast(self.bias, outputs.dtype)
        return self.activation(outputs) if self.activation is not None else outputs

    def multiply(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return inputs times kernel, group by group."""
        kernel = tf.convert_to_tensor(self.kernel)
        if self.groups == 1:
            return keras.ops.matmul(inputs, kernel)
        parts = zip(
            tf.split(inputs, self.groups, -1), tf.split(kernel, self.groups, -1), strict=True
        )
        return tf.concat([keras.ops.matmul(x, k) for x, k in parts], -1)

    def get_config(self) -> dict[str, object]:
        """Return the config of `Dense` and the groups."""
        return {**super().get_config(), "groups": self.groups}
