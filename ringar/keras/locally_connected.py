"""Local connections with untied weights: a convolution with kernels of its own at each pixel.

Keras 2 had this layer, Keras 3 has dropped it. The patches that the kernels read are put together
from k x k shifted views of the images. One batched product of matrices per pixel follows:
[examples, taps x channels] times [taps x channels, filters].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

Activation = Callable[[tf.Tensor], tf.Tensor]


@keras.saving.register_keras_serializable(package="ringar")
class LocallyConnected2D(keras.layers.Layer):
    """Convolve images with different kernels at each pixel of the output.

    The layer computes what `keras.layers.Conv2D` does, if all kernels are equal. It is for images
    whose regions differ in kind and stay in place: aligned faces, games, fixed sensors.

    Args:
        filters: the number of kernels at each pixel, and so of channels of the output.
        kernel_size: the rows and columns of a kernel, or one number for both.
        strides: the distance of the kernels, along rows and columns or one number.
        padding: "valid" or "same", as for `Conv2D`.
        data_format: "channels_last" or "channels_first"; by default Keras' setting.
        dilation_rate: the distance of a kernel's taps, along rows and columns or one number.
        activation: as for `Conv2D`.
        use_bias: whether each pixel and channel of the output has a bias.
        kernel_initializer: as for `Conv2D`. Initializers that go by fan-in and fan-out take those
            of the kernels of one pixel.
        bias_initializer: as for `Conv2D`.
        kernel_regularizer: as for `Conv2D`.
        bias_regularizer: as for `Conv2D`.
        kernel_constraint: as for `Conv2D`.
        bias_constraint: as for `Conv2D`.
        **kwargs: as for `keras.layers.Layer`.

    Inputs are `[examples, rows, columns, channels]`, or with channels first, and so are outputs.
    For kernels of a x b and C channels, `kernel` is `[rows, columns, a b C, filters]` of the
    output's rows and columns; taps come row by row, the channels of a tap together. `bias` is
    `[rows, columns, filters]`. The weights of Keras 2's layer with `implementation=1` and channels
    last have these numbers in this order.

    Raises:
        ValueError: for arguments that `Conv2D` refuses, or images whose rows or columns are unknown
            or fewer than those of a kernel.

    Example:
    ```python
    model = keras.Sequential([
        keras.Input((28, 28, 1)),
        ringar.layers.LocallyConnected2D(8, 5, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ])
    ```
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: str | Activation | None = None,
        use_bias: bool = True,
        kernel_initializer: str | keras.initializers.Initializer = "glorot_uniform",
        bias_initializer: str | keras.initializers.Initializer = "zeros",
        kernel_regularizer: str | keras.regularizers.Regularizer | None = None,
        bias_regularizer: str | keras.regularizers.Regularizer | None = None,
        kernel_constraint: str | keras.constraints.Constraint | None = None,
        bias_constraint: str | keras.constraints.Constraint | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # Keras' layer checks the arguments, and knows the shape of the output.
        self._convolution = keras.layers.Conv2D(
            filters, kernel_size, strides, padding, data_format, dilation_rate
        )
        checked = self._convolution
        self.filters, self.kernel_size, self.strides = filters, checked.kernel_size, checked.strides
        self.padding, self.data_format = checked.padding, checked.data_format
        self.dilation_rate = checked.dilation_rate
        self.activation, self.use_bias = keras.activations.get(activation), use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Make kernels and biases of each pixel of the output."""
        output = list(self.compute_output_shape(input_shape))
        axis = 1 if self.data_format == "channels_first" else 3
        channels = input_shape[axis]
        del output[axis]
        _, rows, columns = output
        if rows is None or columns is None or channels is None:
            raise ValueError(
                f"The rows, columns and channels of the input of {self.name} must be known. "
                f"Received: shape {tuple(input_shape)}"
            )
        if min(rows, columns) < 1:  # Keras before 3.14 computes on
            raise ValueError(
                f"Computed output size would be {rows} x {columns}: the kernels of {self.name} are "
                f"larger than its input. Received: shape {tuple(input_shape)}"
            )
        # Each pixel has its kernels: images of another size have none.
        self.input_spec = keras.layers.InputSpec(shape=(None, *input_shape[1:]))
        taps = math.prod(self.kernel_size) * channels
        self.kernel = self.add_weight(
            name="kernel",
            shape=(rows, columns, taps, self.filters),
            initializer=_of_one_pixel(
                self.kernel_initializer,
                (*self.whole_size(rows, columns), taps, self.filters),
                (*self.kernel_size, channels, self.filters),
            ),
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(rows, columns, self.filters),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the images that the kernels make."""
        first = self.data_format == "channels_first"
        x = self.padded(tf.ensure_shape(inputs, self.input_spec.shape))
        x = tf.transpose(x, [0, 2, 3, 1]) if first else x
        kernel = self.weight(self.kernel)
        outputs = tf.einsum("brck,rckf->brcf", self._patches(x, kernel.shape[:2]), kernel)
        if self.bias is not None:
            outputs = outputs + self.weight(self.bias)
        outputs = tf.transpose(outputs, [0, 3, 1, 2]) if first else outputs
        return self.activation(outputs) if self.activation is not None else outputs

    def padded(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the images, with zeros around them if the padding is "same"."""
        if self.padding == "valid":
            return inputs
        padding = [[0, 0] for _ in range(4)]
        axes = (2, 3) if self.data_format == "channels_first" else (1, 2)
        sides = zip(axes, self.kernel_size, self.strides, self.dilation_rate, strict=True)
        for axis, taps, stride, dilation in sides:
            size = inputs.shape[axis]
            margin = (-(-size // stride) - 1) * stride + (taps - 1) * dilation + 1 - size
            margin = max(margin, 0)
            padding[axis] = [margin // 2, margin - margin // 2]
        return tf.pad(inputs, padding)

    def whole_size(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the rows and columns of the whole output, given those of this layer's."""
        return rows, columns

    def weight(self, variable: keras.Variable) -> tf.Tensor:
        """Return the value of a weight, in the dtype of the computation."""
        return tf.cast(tf.convert_to_tensor(variable), self.compute_dtype)

    def _patches(self, x: tf.Tensor, outputs: Sequence[int]) -> tf.Tensor:
        """Return the inputs of each pixel's kernels: `[examples, rows, columns, taps x C]`."""
        views = []
        for tap in range(math.prod(self.kernel_size)):
            index = [slice(None)] * 4
            for axis, place in enumerate(divmod(tap, self.kernel_size[1])):
                start, stride = place * self.dilation_rate[axis], self.strides[axis]
                index[1 + axis] = slice(start, start + (outputs[axis] - 1) * stride + 1, stride)
            views.append(x[tuple(index)])
        return tf.concat(views, -1)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """Return the shape of `Conv2D`."""
        shape: tuple[int | None, ...] = self._convolution.compute_output_shape(input_shape)
        return shape

    def get_config(self) -> dict[str, object]:
        """Return the arguments."""
        serialized = {
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }
        plain = ("filters", "kernel_size", "strides", "padding", "data_format", "dilation_rate",
                 "use_bias")  # fmt: skip
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in plain},
            **serialized,
        }


def _of_one_pixel(
    initializer: keras.initializers.Initializer, shape: Sequence[int], kernels: Sequence[int]
) -> keras.initializers.Initializer:
    """Return an initializer that goes by the fan-in and fan-out of the kernels of one pixel.

    Args:
        initializer: any.
        shape: of the kernels of all pixels.
        kernels: the shape that those of one pixel would have in a convolution.
    """
    if not isinstance(initializer, keras.initializers.VarianceScaling):
        return initializer
    mode = initializer.mode
    scale = initializer.scale * _fan(mode, shape) / _fan(mode, kernels)
    return keras.initializers.VarianceScaling(
        scale, mode, initializer.distribution, initializer.seed
    )


def _fan(mode: str, shape: Sequence[int]) -> float:
    """Return the fan by which `VarianceScaling` divides."""
    *taps, inputs, outputs = shape
    field = math.prod(taps)
    fans = {"fan_in": inputs * field, "fan_out": outputs * field}
    return max(1.0, fans[mode] if mode in fans else sum(fans.values()) / 2)
