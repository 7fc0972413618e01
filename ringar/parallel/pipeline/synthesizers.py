"""Synthesizers: small nets that predict the results of another module.

Jaderberg et al., "Decoupled neural interfaces using synthetic gradients" (ICML 2017). With the
activations h of a module, M(h) is the prediction of the gradient of the loss with respect to h, and
M(h, y) the conditioned one, which also sees the labels y. I(x) predicts the activations themselves
from the inputs of the net.

A prediction is for one example, and the gradient of a mean over B examples is 1/B of it. So a
synthesizer serves batches of any size.

    Synthesizer   builds the default nets
    Predictor     one net in use: predicts, and learns by the squared error (L2)
    Labels        the labels in the form in which synthesizers see them
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from ringar.keras import optimizer_copy

Specs = Sequence[tf.TensorSpec]
Builder: TypeAlias = "Callable[[list[tf.TensorSpec], list[tf.TensorSpec]], keras.Model]"
"""Makes a synthesizer, given the tensors that it sees and those that it predicts."""

layers = keras.layers


@dataclasses.dataclass(frozen=True)
class Synthesizer:
    """Build synthesizers as in the paper: normalized hidden layers, then a linear layer.

    For activations without spatial dimensions the layers are dense. For maps they are convolutions
    that keep the size, and labels become constant channels. The last layer begins with zeros, so
    that the first synthetic gradients are zero.

    Args:
        hidden_layers: the number of hidden layers; 0 for a linear synthesizer.
        units: the units of a hidden dense layer; by default 4 per unit that is predicted, at most
            1,024.
        filters: the filters of a hidden convolution; by default twice the predicted channels, at
            most 128.
        kernel_size: the size of the convolutions.

    Raises:
        ValueError: a number is out of range.

    Example:
    ```python
    linear = ringar.parallel.Synthesizer(hidden_layers=0)
    model = ringar.parallel.Pipelined(model, schedule="synthetic", synthesizer=linear)
    ```
    """

    hidden_layers: int = 1
    units: int | None = None
    filters: int | None = None
    kernel_size: int = 5

    def __post_init__(self) -> None:
        least = {"hidden_layers": 0, "units": 1, "filters": 1, "kernel_size": 1}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is None and name in ("units", "filters"):
                continue
            if not (isinstance(value, int) and value >= smallest):
                raise ValueError(
                    f"`{name}` must be a whole number of at least {smallest}. "
                    f"Received: {name}={value!r}"
                )

    def __call__(self, inputs: list[tf.TensorSpec], outputs: list[tf.TensorSpec]) -> keras.Model:
        """Return a new synthesizer.

        Args:
            inputs: the tensors that it sees, `[batch, ...]`.
            outputs: the tensors that it predicts, `[batch, ...]`.
        """
        return self._build(inputs, outputs, "zeros")

    def for_inputs(self, inputs: list[tf.TensorSpec], outputs: list[tf.TensorSpec]) -> keras.Model:
        """Return a new synthesizer of activations, which does not begin with zeros."""
        return self._build(inputs, outputs, "glorot_uniform")

    def _build(self, inputs: Specs, outputs: Specs, last: str) -> keras.Model:
        model_inputs = _inputs(inputs)
        tensors = [keras.ops.cast(tensor, "float32") for tensor in model_inputs]
        predictions = [self._branch(tensors, tuple(spec.shape), last) for spec in outputs]
        return keras.Model(model_inputs, predictions, name="synthesizer")

    def _branch(self, tensors: list[Any], shape: tuple[int | None, ...], last: str) -> Any:
        """Return the prediction of one tensor."""
        plane = shape[1:-1]
        if plane and any(len(t.shape) == len(shape) and t.shape[1:-1] == plane for t in tensors):
            return self._convolutions(_as_maps(tensors, plane), shape, last)
        x = _joined([layers.Flatten(dtype="float32")(tensor) for tensor in tensors])
        size = math.prod(_sizes(shape[1:]))
        for _ in range(self.hidden_layers):
            units = self.units or min(4 * size, 1024)
            x = _activated(layers.Dense(units, use_bias=False, dtype="float32")(x))
        x = layers.Dense(size, kernel_initializer=last, dtype="float32")(x)
        return x if len(shape) == 2 else layers.Reshape(shape[1:], dtype="float32")(x)

    def _convolutions(self, x: Any, shape: tuple[int | None, ...], last: str) -> Any:
        (channels,) = _sizes(shape[-1:])
        kind = {3: layers.Conv1D, 4: layers.Conv2D, 5: layers.Conv3D}[len(shape)]
        common: dict[str, Any] = {
            "padding": "same", "data_format": "channels_last", "dtype": "float32",
        }  # fmt: skip
        for _ in range(self.hidden_layers):
            filters = self.filters or min(2 * channels, 128)
            x = _activated(kind(filters, self.kernel_size, use_bias=False, **common)(x))
        return kind(channels, self.kernel_size, kernel_initializer=last, **common)(x)


class Labels:
    """Turn targets into the form in which a synthesizer sees them: float32, shaped as the outputs.

    Whole numbers in place of the last dimension of an output become one-hot vectors.

    Args:
        model: the whole model.

    Raises:
        ValueError: the size of its outputs is not known.
    """

    def __init__(self, model: keras.Model) -> None:
        for output in model.outputs:
            if len(output.shape) < 2 or None in output.shape[1:]:
                raise ValueError(
                    "The model must have outputs of known size for synthesizers to see the labels. "
                    f"Received: an output of shape {output.shape}. Use conditioned=False."
                )
        self.specs = [tf.TensorSpec(output.shape, tf.float32) for output in model.outputs]
        self._names = [] if isinstance(model.output, dict) else model.output_names

    def __call__(self, y: Any) -> list[tf.Tensor]:
        """Return the labels, one tensor per output of the model.

        Raises:
            ValueError: the targets do not have the shape of the outputs, or of one-hot outputs.
        """
        if isinstance(y, dict) and set(y) == set(self._names):
            y = [y[name] for name in self._names]  # which `flatten` would sort
        labels = keras.tree.flatten(y)
        if len(labels) != len(self.specs) or any(label is None for label in labels):
            raise ValueError(
                f"`y` must have labels for all {len(self.specs)} outputs, since conditioned "
                f"synthesizers see them. Received: {len(labels)}"
            )
        return [self._as_output(*pair) for pair in zip(labels, self.specs, strict=True)]

    def _as_output(self, labels: Any, spec: tf.TensorSpec) -> tf.Tensor:
        labels = tf.convert_to_tensor(labels)
        dims = tuple(spec.shape[1:])
        shape = tuple(labels.shape[1:])
        if shape == dims:
            return tf.cast(labels, tf.float32)
        if math.prod(shape) == math.prod(dims):
            return tf.cast(tf.reshape(labels, [-1, *dims]), tf.float32)
        if math.prod(shape) == math.prod(dims[:-1]):
            classes = tf.cast(tf.reshape(labels, [-1, *dims[:-1]]), tf.int32)
            return tf.one_hot(classes, dims[-1])
        raise ValueError(
            f"`y` must have the shape {('batch', *dims)} of the output, or {('batch', *dims[:-1])} "
            f"with classes, since conditioned synthesizers see it. Received: {labels.shape}"
        )


class Predictor:
    """Predict tensors by a synthesizer, and let it learn from the true ones.

    Args:
        model: the synthesizer.
        optimizer: its own optimizer.
        outputs: the tensors that it predicts.
        is_mean: whether it predicts gradients of a mean, of which an example has its share.
        compiled: compiles a function, as `tf.function` does.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        outputs: Specs,
        *,
        is_mean: bool,
        compiled: Callable[[Any], Any] = tf.function,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._predicted_specs = list(outputs)
        self._is_mean = is_mean
        optimizer.build(model.trainable_variables)
        self._predict, self._learn = compiled(self._predicted), compiled(self._learned)

    def predict(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the predictions for a batch, in the dtypes of the true tensors."""
        if inputs[0].shape[0] == 0:  # means over an empty batch are NaN
            return [tf.zeros((0, *s.shape[1:]), s.dtype) for s in self._predicted_specs]
        return list(self._predict(list(inputs)))

    def learn(self, inputs: Sequence[tf.Tensor], truth: Sequence[tf.Tensor]) -> tf.Tensor:
        """Take a step towards the true tensors; return the squared error per example."""
        if inputs[0].shape[0] == 0:
            return tf.constant(0.0)
        return self._learn(list(inputs), list(truth))

    def _predicted(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        share = self._share(inputs)
        return [
            tf.cast(output * share, spec.dtype)
            for output, spec in zip(self._outputs(inputs), self._predicted_specs, strict=True)
        ]

    def _learned(self, inputs: list[tf.Tensor], truth: list[tf.Tensor]) -> tf.Tensor:
        share = self._share(inputs)
        with tf.GradientTape() as tape:
            errors = [
                tf.reduce_sum((output - tf.cast(true, tf.float32) / share) ** 2)
                for output, true in zip(self._outputs(inputs), truth, strict=True)
            ]
            penalties = [tf.cast(loss, tf.float32) for loss in self.model.losses]
            loss = tf.add_n(errors) / _rows(inputs) + sum(penalties)
        variables = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    def _outputs(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        outputs = keras.tree.flatten(self.model(inputs, training=True))
        return [tf.cast(output, tf.float32) for output in outputs]

    def _share(self, inputs: list[tf.Tensor]) -> tf.Tensor:
        return 1.0 / _rows(inputs) if self._is_mean else tf.constant(1.0)


def fitting(model: Any, inputs: Specs, outputs: Specs, place: str) -> keras.Model:
    """Return the model, or a functional one around it if it has no inputs yet.

    Args:
        model: the user's synthesizer.
        inputs: the tensors that it is to take.
        outputs: the tensors that it is to return.
        place: its place, in the error.

    Raises:
        ValueError: it does not take and return tensors of these shapes.
    """
    if not isinstance(model, keras.Model):
        raise ValueError(f"The synthesizer {place} must be a Keras model. Received: {model!r}")
    if not hasattr(model, "inputs"):  # a subclass, or a Sequential that is not built
        model_inputs = _inputs(inputs)
        predictions = model(model_inputs[0] if len(model_inputs) == 1 else model_inputs)
        model = keras.Model(model_inputs, keras.tree.flatten(predictions), name=model.name)
    for kind, tensors, specs in (
        ("input", model.inputs, inputs), ("output", model.outputs, outputs),
    ):  # fmt: skip
        shapes = [tuple(tensor.shape[1:]) for tensor in tensors or ()]
        expected = [tuple(spec.shape[1:]) for spec in specs]
        if len(shapes) != len(expected) or not all(map(_fits, shapes, expected)):
            raise ValueError(
                f"The synthesizer {place} must have {kind}s of shape "
                f"{', '.join(_text(shape) for shape in expected)}. Received: {model.name} with "
                f"{', '.join(_text(shape) for shape in shapes) or 'none'}"
            )
    return model


def copy_of(optimizer: str | keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return a new optimizer of the same settings, without state."""
    return optimizer_copy.copy_of(keras.optimizers.get(optimizer))


def _fits(shape: tuple[int | None, ...], expected: tuple[int | None, ...]) -> bool:
    pairs_fit = (a == b or a is None for a, b in zip(shape, expected, strict=False))
    return len(shape) == len(expected) and all(pairs_fit)


def _text(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join(['batch', *map(str, shape)])}]"


def _inputs(specs: Specs) -> list[Any]:
    return [keras.Input(batch_shape=tuple(s.shape), dtype=s.dtype.name) for s in specs]


def _activated(x: Any) -> Any:
    return layers.ReLU(dtype="float32")(layers.BatchNormalization(dtype="float32")(x))


def _joined(tensors: list[Any]) -> Any:
    return layers.Concatenate(dtype="float32")(tensors) if len(tensors) > 1 else tensors[0]


def _as_maps(tensors: list[Any], plane: tuple[int | None, ...]) -> Any:
    """Return all tensors as channels of one map; those of another plane by their means."""
    maps = [t for t in tensors if t.shape[1:-1] == plane and len(t.shape) == len(plane) + 2]
    images = []
    for tensor in tensors:
        if any(tensor is image for image in maps):
            images.append(tensor)
            continue
        if len(tensor.shape) > 2:
            tensor = keras.ops.mean(tensor, axis=tuple(range(1, len(tensor.shape) - 1)))
        flat = keras.ops.reshape(tensor, (-1, *[1] * len(plane), tensor.shape[-1]))
        images.append(keras.ops.zeros_like(maps[0][..., :1]) + flat)
    return _joined(images)


def _sizes(dims: Sequence[int | None]) -> list[int]:
    if None in dims:
        raise ValueError(
            "Synthesizers need activations of known size. Received: the dimensions "
            f"{_text(tuple(dims))}. Give the inputs of the model a size."
        )
    return [int(dim) for dim in dims if dim is not None]


def _rows(inputs: list[tf.Tensor]) -> tf.Tensor:
    return tf.cast(tf.shape(inputs[0])[0], tf.float32)
