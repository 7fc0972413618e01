"""A net as a chain of stages, each of which has a Jacobian.

A layer with an activation makes two stages: a linear one, whose Jacobian depends on weights, and
the activation, whose Jacobian depends on its outputs. A stage runs forward in TensorFlow and
returns a record, the tensor on which its Jacobian depends; `matrix` makes the Jacobian from it in
NumPy.

The activation of the last layer is not a stage: it is differentiated with the loss. It may
therefore be any function, and losses find the logits of a softmax as they do in Keras.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from ringar.parallel.scan import jacobians
from ringar.parallel.scan.elements import Element

if TYPE_CHECKING:
    from scipy.sparse import csr_array


layers = keras.layers
Shape = tuple[int, ...]
Run = Callable[[tf.Tensor, bool], tuple[tf.Tensor, Any]]

SUPPORTED = (
    "Dense, Conv2D, MaxPooling2D, Flatten, Reshape, Dropout, ReLU and Activation, with relu, tanh, "
    "sigmoid or linear as activation, and with any one in the last layer"
)


@dataclasses.dataclass
class Stage:
    """Describe one layer as a stage of a chain.

    Attributes:
        layer: the layer that it belongs to.
        kind: "convolution", "max-pooling", "relu", ...
        run: `run(inputs, training)` returns outputs and the record, a tensor or None.
        matrix: `matrix(record)` makes the transposed Jacobian from the record, a NumPy array.
        shape: the shape of an example's transposed Jacobian: the sizes of its input and output.
        entries: the number of entries that are not guaranteed to be zero.
        per_example: whether the Jacobian differs between examples.
    """

    layer: keras.layers.Layer
    kind: str
    run: Run
    matrix: Callable[..., csr_array]
    shape: tuple[int, int]
    entries: int
    per_example: bool = False

    @property
    def is_identity(self) -> bool:
        """Whether the stage only reshapes its input."""
        return self.kind == "identity"

    @property
    def guaranteed_zeros(self) -> float:
        """The fraction of the Jacobian that is zero for all weights and inputs."""
        return 1 - self.entries / math.prod(self.shape)

    def element(self, record: np.ndarray | None) -> Element:
        """Return the transposed Jacobian, for the scan."""
        return Element(self.matrix(record), self.per_example, f"{self.layer.name} ({self.kind})")


@dataclasses.dataclass
class Chain:
    """Describe a net as a chain of stages.

    Attributes:
        stages: the stages, in the order of the forward pass.
        finish: the activation of the last layer.
    """

    stages: list[Stage]
    finish: Callable[[Any], Any]

    @classmethod
    def of(cls, net: Sequence[Any], input_shape: Sequence[int | None]) -> Chain:
        """Return the chain of some layers.

        Args:
            net: the layers, built.
            input_shape: the shape of an example.

        Raises:
            ValueError: a layer is not supported; the error names it.
        """
        _check_dtypes(net)
        shape = _example_shape(input_shape, net[0])
        stages: list[Stage] = []
        finish: Callable[[Any], Any] = keras.activations.linear
        for layer in net:
            check(layer)
            stages += _LINEAR[type(layer)](layer, shape) if type(layer) in _LINEAR else []
            shape = _example_shape(layer.compute_output_shape((None, *shape))[1:], layer)
            function = layer if type(layer) in _FUNCTIONS else _activation(layer)
            if layer is net[-1]:
                finish = function
            elif function is not keras.activations.linear:
                stages.append(_elementwise(layer, function, math.prod(shape)))
        return cls(stages, finish)


def check(layer: keras.layers.Layer) -> None:
    """Check that a layer is supported, as far as that is known before it is built.

    Raises:
        ValueError: it is not; the error names the layer and the supported ones.
    """
    reason = ""
    if type(layer) not in {*_LINEAR, *_FUNCTIONS, layers.InputLayer}:
        reason = f"it is a {type(layer).__name__}"
    elif getattr(layer, "activity_regularizer", None) is not None:
        reason = "it has an `activity_regularizer`"
    elif getattr(layer, "quantization_mode", None) is not None:
        reason = f"it is quantized to {layer.quantization_mode}"
    elif getattr(layer, "data_format", None) == "channels_first":
        reason = 'its `data_format` is "channels_first"'
    elif getattr(layer, "compute_dtype", None) not in (None, "float32", "float64"):
        reason = f"it computes in {layer.compute_dtype}, not in float32 or float64"
    if reason:
        raise ValueError(
            f"The layers must be {SUPPORTED}, channels last, in float32 or float64, without "
            f"`activity_regularizer`. Received: layer {layer.name}; {reason}. "
            "Replace it, or train with `keras.Sequential`, which takes any layer."
        )


def _check_dtypes(net: Sequence[Any]) -> None:
    for layer in net:
        if layer.compute_dtype != net[0].compute_dtype:
            raise ValueError(
                "The layers must all compute in the same dtype, that of the gradients between "
                f"them. Received: layer {net[0].name} in {net[0].compute_dtype}, layer "
                f"{layer.name} in {layer.compute_dtype}"
            )


# Stages by kinds of layers ----------------------------------------------------------------------


def _dense(layer: keras.layers.Layer, shape: Shape) -> list[Stage]:
    rows, columns = layer.kernel.shape
    copies = math.prod(shape[:-1])

    def matrix(kernel: np.ndarray) -> csr_array:
        return jacobians.dense(kernel, copies)

    size = (copies * rows, copies * columns)
    return [Stage(layer, "dense", _run_linear(layer), matrix, size, copies * rows * columns)]


def _convolution(layer: keras.layers.Layer, shape: Shape) -> list[Stage]:
    pattern = jacobians.Convolution(
        shape, tuple(layer.kernel.shape), layer.strides, layer.padding, layer.dilation_rate,
        layer.groups,
    )  # fmt: skip
    return [
        Stage(layer, "convolution", _run_linear(layer), pattern.transposed, pattern.shape,
              pattern.entries)
    ]  # fmt: skip


def _max_pooling(layer: keras.layers.Layer, shape: Shape) -> list[Stage]:
    pattern = jacobians.MaxPooling(shape, layer.pool_size, layer.strides, layer.padding)

    def run(inputs: tf.Tensor, training: bool) -> tuple[tf.Tensor, tf.Tensor | None]:
        return layer(inputs), inputs

    return [
        Stage(layer, "max-pooling", run, pattern.transposed, pattern.shape, pattern.entries, True)
    ]


def _reshape(layer: keras.layers.Layer, shape: Shape) -> list[Stage]:
    size = math.prod(shape)

    def run(inputs: tf.Tensor, training: bool) -> tuple[tf.Tensor, tf.Tensor | None]:
        return layer(inputs), None

    def matrix(record: np.ndarray) -> csr_array:
        return jacobians.identity(size, layer.compute_dtype)

    return [Stage(layer, "identity", run, matrix, (size, size), size)]


def _dropout(layer: keras.layers.Layer, shape: Shape) -> list[Stage]:
    def run(inputs: tf.Tensor, training: bool) -> tuple[tf.Tensor, tf.Tensor | None]:
        # The layer's output for ones is its mask, with the same random numbers.
        mask = layer(tf.ones_like(inputs), training=training)
        return inputs * mask, mask

    size = math.prod(shape)
    return [Stage(layer, "dropout", run, jacobians.diagonal, (size, size), size, True)]


def _nothing(layer: keras.layers.Layer, shape: Shape) -> list[Stage]:
    return []


#: The stages of a layer before its activation, by exact type: subclasses may compute differently.
_LINEAR: dict[type, Callable[[Any, Shape], list[Stage]]] = {
    layers.Dense: _dense,
    layers.Conv2D: _convolution,
    layers.MaxPooling2D: _max_pooling,
    layers.Flatten: _reshape,
    layers.Reshape: _reshape,
    layers.Dropout: _dropout,
    layers.Activation: _nothing,
}

#: Layers that are an activation.
_FUNCTIONS = (layers.ReLU, layers.Softmax)


def _elementwise(
    layer: keras.layers.Layer, function: Callable[[tf.Tensor], tf.Tensor], size: int
) -> Stage:
    name = _name(function)
    if name is None:
        raise ValueError(
            f"The layers must be {SUPPORTED}. Received: layer {layer.name} with activation "
            f"{getattr(function, '__name__', function)}, which is not the last layer."
        )

    def run(inputs: tf.Tensor, training: bool) -> tuple[tf.Tensor, tf.Tensor | None]:
        outputs = function(inputs)
        return outputs, outputs

    def matrix(outputs: np.ndarray) -> csr_array:
        return jacobians.activation(name, outputs)

    return Stage(layer, name, run, matrix, (size, size), size, True)


def _name(function: Callable[[tf.Tensor], tf.Tensor]) -> str | None:
    """Return the name of a supported activation, or None."""
    if isinstance(function, layers.ReLU):
        plain = (None, 0, 0)
        values = (function.max_value, function.negative_slope, function.threshold)
        return "relu" if values == plain else None
    for name in jacobians.FROM_OUTPUT:
        if function is getattr(keras.activations, name):
            return name
    return None


def _activation(layer: keras.layers.Layer) -> Callable[[tf.Tensor], tf.Tensor]:
    return getattr(layer, "activation", keras.activations.linear)


def _run_linear(layer: keras.layers.Layer) -> Run:
    def run(inputs: tf.Tensor, training: bool) -> tuple[tf.Tensor, tf.Tensor | None]:
        with _without_activation(layer):
            return layer(inputs), tf.stop_gradient(tf.convert_to_tensor(layer.kernel))

    return run


@contextmanager
def _without_activation(layer: keras.layers.Layer) -> Iterator[None]:
    activation, layer.activation = layer.activation, keras.activations.linear
    try:
        yield
    finally:
        layer.activation = activation


def _example_shape(shape: Sequence[int | None], layer: keras.layers.Layer) -> Shape:
    if None in shape:
        raise ValueError(
            "The shape of an example must be known in each layer, since Jacobians are made for it. "
            f"Received: {tuple(shape)} at layer {layer.name}. Begin with a "
            "`keras.Input(shape)` that does not contain None."
        )
    return tuple(int(number) for number in shape if number is not None)
