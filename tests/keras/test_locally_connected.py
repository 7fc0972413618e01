"""`LocallyConnected2D`, on one process, against a convolution at each pixel."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar

LocallyConnected2D = ringar.layers.LocallyConnected2D
pytestmark = pytest.mark.ranks(1)

CASES: list[dict[str, Any]] = [
    {"kernel_size": 3},
    {"kernel_size": (2, 3), "strides": (2, 1), "padding": "same"},
    {"kernel_size": 3, "dilation_rate": 2, "padding": "same", "activation": "tanh"},
    {"kernel_size": (3, 1), "strides": 2, "use_bias": False},
]


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(3, *shape)).astype("float32")


@pytest.mark.parametrize("options", CASES)
def test_each_pixel_is_a_convolution_with_its_kernels(options: dict[str, Any]) -> None:
    """Outputs, and gradients by those of as many convolutions."""
    x = tf.constant(images(7, 6, 2))
    layer = LocallyConnected2D(4, **options)
    layer.build(x.shape)
    for weight in layer.weights:
        weight.assign(np.random.default_rng(1).normal(size=weight.shape))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        loss = tf.reduce_sum(tf.sin(y))
    gradients = tape.gradient(loss, [x, *[w.value for w in layer.weights]])

    conv = keras.layers.Conv2D(4, **options)
    conv.build(x.shape)
    kernel = layer.kernel.value
    total: Any = 0.0
    outputs = np.zeros(y.shape, "float32")
    with tf.GradientTape() as tape:
        tape.watch(x)
        for row, column in itertools.product(*map(range, kernel.shape[:2])):
            flat = kernel[row, column]
            full = conv.convolution_op(x, tf.reshape(flat, conv.kernel.shape))[:, row, column]
            if layer.bias is not None:
                full = full + layer.bias.value[row, column]
            full = conv.activation(full)
            outputs[:, row, column] = full
            total += tf.reduce_sum(tf.sin(full))
    np.testing.assert_allclose(y, outputs, atol=1e-5)
    expected = tape.gradient(total, [x, *[w.value for w in layer.weights]])
    for gradient, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, other, atol=1e-4)


def test_equal_kernels_are_a_convolution() -> None:
    x = images(9, 8, 3)
    layer, conv = (
        LocallyConnected2D(5, 3, padding="same"),
        keras.layers.Conv2D(5, 3, padding="same"),
    )
    conv.build(x.shape)
    layer.build(x.shape)
    layer.kernel.assign(np.broadcast_to(np.reshape(conv.kernel, [-1, 5]), layer.kernel.shape))
    np.testing.assert_allclose(layer(x), conv(x), atol=1e-5)
    assert layer.compute_output_shape(x.shape) == conv.compute_output_shape(x.shape)


def test_channels_first() -> None:
    x = images(8, 7, 2)
    last = LocallyConnected2D(4, (3, 2), strides=2, padding="same")
    first = LocallyConnected2D(4, (3, 2), strides=2, padding="same", data_format="channels_first")
    y = last(x)
    first.build((None, 2, 8, 7))
    first.set_weights(last.get_weights())
    np.testing.assert_allclose(
        np.transpose(first(np.transpose(x, [0, 3, 1, 2])), [0, 2, 3, 1]), y, atol=1e-5
    )


def test_initial_weights_have_the_variance_of_a_convolution() -> None:
    """They go by the fans of the kernels of one pixel, and not by the number of pixels."""
    for initializer in ("glorot_uniform", "he_normal", "lecun_uniform"):
        layer = LocallyConnected2D(16, 3, kernel_initializer=initializer)
        conv = keras.layers.Conv2D(16, 3, kernel_initializer=initializer)
        layer.build((None, 12, 12, 8))
        conv.build((None, 12, 12, 8))
        deviation, expected = np.std(layer.kernel.numpy()), np.std(conv.kernel.numpy())
        assert deviation == pytest.approx(expected, rel=0.1), initializer


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    model = keras.Sequential([
        keras.Input((6, 6, 1)),
        LocallyConnected2D(2, 3, activation="relu", kernel_regularizer="l2", name="local"),
        keras.layers.Flatten(),
    ])  # fmt: skip
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.get_layer("local").get_config() == model.get_layer("local").get_config()
    x = images(6, 6, 1)
    np.testing.assert_array_equal(again(x), model(x))


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match=r"must be known\. Received: shape \(None, None, 6, 1\)"):
        LocallyConnected2D(2, 3).build((None, None, 6, 1))
    with pytest.raises(ValueError, match="kernel_size"):
        LocallyConnected2D(2, 0)
    with pytest.raises(ValueError, match="Computed output size would be"):
        LocallyConnected2D(2, 7).build((None, 6, 6, 1))
    layer = LocallyConnected2D(2, 3)
    layer(images(6, 6, 1))
    with pytest.raises(ValueError, match=r"expected shape=\(None, 6, 6, 1\)"):
        layer(images(7, 6, 1))


def test_images_whose_sizes_are_found_when_they_come() -> None:
    """As those of decoded files: the kernels know them."""
    x, layer = images(6, 5, 2), LocallyConnected2D(2, 3, padding="same")
    expected = layer(x)
    decoded = tf.function(layer, input_signature=[tf.TensorSpec((None, None, None, 2))])
    np.testing.assert_array_equal(decoded(x), expected)
