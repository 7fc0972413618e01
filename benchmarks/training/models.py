"""The models that benchmarks train, with the data to train them on."""

from __future__ import annotations

from typing import Any

import numpy as np


def mlp() -> Any:
    """Builds two dense layers of 32 units, whose step is all overhead."""
    import keras

    layers = [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(32)]
    return keras.Sequential([keras.Input((32,)), *layers])


def digits() -> Any:
    """Builds the model of examples/digits.py: 151,306 weights, 0.6 MB."""
    from examples.digits import make_model

    return make_model((8, 8, 1))


def small_cnn() -> Any:
    """Builds two convolutions and two dense layers: 2.1 million parameters, 8.5 MB."""
    import keras

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(1344, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def resnet20() -> Any:
    """Builds the residual net of 20 layers for 32x32 images (He et al. 2016): 272,282 weights."""
    import keras

    layers = keras.layers

    def convolution(value: Any, filters: int, strides: int = 1) -> Any:
        value = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(value)
        return layers.BatchNormalization()(value)

    inputs = keras.Input((32, 32, 3))
    value = layers.ReLU()(convolution(inputs, 16))
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            strides = 2 if stage and not block else 1
            inner = layers.ReLU()(convolution(value, filters, strides))
            if strides == 2:
                value = layers.Conv2D(filters, 1, 2, use_bias=False)(value)
            value = layers.ReLU()(layers.add([convolution(inner, filters), value]))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(value)))


def alexnet() -> Any:
    """Builds AlexNet (Krizhevsky 2014): 58.6 of 61 million parameters in dense layers."""
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((224, 224, 3)),
            layers.Conv2D(64, 11, strides=4, padding="same", activation="relu"),
            layers.MaxPooling2D(3, 2),
            layers.Conv2D(192, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(3, 2),
            layers.Conv2D(384, 3, padding="same", activation="relu"),
            layers.Conv2D(256, 3, padding="same", activation="relu"),
            layers.Conv2D(256, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(3, 2),
            layers.Flatten(),
            layers.Dense(4096, activation="relu"),
            layers.Dense(4096, activation="relu"),
            layers.Dense(1000),
        ]
    )


def resnet50() -> Any:
    """Builds keras.applications.ResNet50 with random weights: 214 gradients, 102 MB."""
    import keras

    return keras.applications.ResNet50(weights=None, classifier_activation=None)


MODELS = {
    "mlp": (mlp, 8),
    "digits": (digits, 32),
    "small_cnn": (small_cnn, 32),
    "resnet20": (resnet20, 32),
    "alexnet": (alexnet, 16),
    "resnet50": (resnet50, 8),
}
"""Name: how to make it, and examples per rank and step."""


def data_for(model: Any, examples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns random inputs and targets of the model's shapes."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(examples, *model.input_shape[1:])).astype(np.float32)
    targets = random.normal(size=(examples, *model.output_shape[1:])).astype(np.float32)
    return inputs, targets
