"""Each layer on tiles equals Keras' layer on whole images: outputs and gradients, eagerly."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.sharding.cut import cut_of
from tests.parallel.conftest import OpenGrid
from tests.parallel.partitioned import nets

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(1, 2, 3, 4)]

K, R = nets.K, nets.R
BATCH, CHANNELS = 2, 3
FIRST = {"data_format": "channels_first"}

LAYERS: dict[str, tuple[Any, dict[str, Any], tuple[int, int]]] = {
    "odd": (R.PartitionedConv2D, {"kernel_size": 3, "padding": "same"}, (13, 11)),
    "valid": (R.PartitionedConv2D, {"kernel_size": (5, 2)}, (14, 9)),
    "even kernel": (R.PartitionedConv2D, {"kernel_size": 4, "padding": "same"}, (9, 10)),
    "strides": (R.PartitionedConv2D,
                {"kernel_size": 3, "strides": (2, 3), "padding": "same"}, (15, 14)),
    "strides, valid": (R.PartitionedConv2D, {"kernel_size": 3, "strides": 2}, (12, 13)),
    "steps over rows": (R.PartitionedConv2D, {"kernel_size": 1, "strides": 3}, (13, 13)),
    "dilation": (R.PartitionedConv2D,
                 {"kernel_size": 3, "dilation_rate": (3, 2), "padding": "same"}, (11, 12)),
    "dilation, valid": (R.PartitionedConv2D, {"kernel_size": 3, "dilation_rate": 2}, (13, 12)),
    "groups": (R.PartitionedConv2D, {"kernel_size": 3, "groups": 3, "padding": "same"}, (8, 8)),
    "pointwise": (R.PartitionedConv2D, {"kernel_size": 1}, (5, 6)),
    "thinner than the reach": (R.PartitionedConv2D,
                               {"kernel_size": 9, "padding": "same"}, (5, 5)),
    "much is left over": (R.PartitionedConv2D, {"kernel_size": 9}, (13, 13)),
    "local": (R.PartitionedLocallyConnected2D,
              {"kernel_size": 3, "activation": "tanh", "padding": "same"}, (9, 7)),
    "local, strides": (R.PartitionedLocallyConnected2D,
                       {"kernel_size": (3, 2), "strides": 2}, (13, 12)),
    "local, dilation": (R.PartitionedLocallyConnected2D,
                        {"kernel_size": 3, "dilation_rate": 2, "padding": "same"}, (7, 8)),
    "maxima": (R.PartitionedMaxPooling2D, {"pool_size": 3, "strides": 2}, (14, 13)),
    "maxima, same": (R.PartitionedMaxPooling2D,
                     {"pool_size": 3, "strides": 1, "padding": "same"}, (7, 9)),
    "means": (R.PartitionedAveragePooling2D, {"pool_size": 2}, (13, 10)),
    "means, same": (R.PartitionedAveragePooling2D,
                    {"pool_size": (3, 4), "strides": (2, 1), "padding": "same"}, (9, 11)),
    "all maxima": (R.PartitionedGlobalMaxPooling2D, {}, (6, 5)),
    "all maxima, kept": (R.PartitionedGlobalMaxPooling2D, {"keepdims": True}, (5, 5)),
    "the mean": (R.PartitionedGlobalAveragePooling2D, {}, (7, 5)),
    "the mean, kept": (R.PartitionedGlobalAveragePooling2D, {"keepdims": True}, (5, 4)),
    "channels first": (R.PartitionedConv2D,
                       {**FIRST, "kernel_size": 3, "strides": 2, "padding": "same"}, (9, 8)),
    "local, channels first": (R.PartitionedLocallyConnected2D,
                              {**FIRST, "kernel_size": (3, 2), "padding": "same"}, (5, 6)),
    "means, channels first": (R.PartitionedAveragePooling2D,
                              {**FIRST, "pool_size": 3, "padding": "same"}, (10, 11)),
    "all maxima, channels first": (R.PartitionedGlobalMaxPooling2D, FIRST, (5, 6)),
}  # fmt: skip


def convolves_channels_first() -> bool:
    """Whether TensorFlow has the convolution here: on CPUs it comes with oneDNN only."""
    try:
        tf.nn.conv2d(tf.zeros([1, 1, 1, 1]), tf.zeros([1, 1, 1, 1]), 1, "VALID", "NCHW")
    except tf.errors.UnimplementedError:
        return False
    return True


def gradients(layers: list[Any], x: tf.Tensor) -> tuple[np.ndarray, list[np.ndarray]]:
    """Output, and the gradients of input and weights, of a loss that differs by pixel."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x
        for layer in layers:
            y = layer(y)
        factors = tf.reshape(tf.cast(tf.range(tf.size(y)) % 7 - 3, y.dtype), tf.shape(y))
        loss = tf.reduce_sum(tf.sin(y) * factors)
    weights = [w.value for layer in layers for w in layer.trainable_weights]
    return y.numpy(), [np.asarray(g) for g in tape.gradient(loss, [x, *weights])]


def check(name: str, grid: ringar.parallel.Grid, **overrides: Any) -> None:
    kind, options, size = LAYERS[name]
    if name == "channels first" and not convolves_channels_first():
        pytest.skip("TensorFlow convolves with channels first only with oneDNN")
    options = {**options, **overrides}
    if issubclass(kind, R.PartitionedConv2D | R.PartitionedLocallyConnected2D):
        options = {"filters": 6, **options}
        options["bias_initializer"] = keras.initializers.RandomNormal(seed=1)
        options["kernel_initializer"] = keras.initializers.GlorotUniform(seed=2)
    # Few values, so that maxima are at several pixels.
    rng = np.random.default_rng(5)
    x = tf.constant(np.round(rng.normal(size=(BATCH, *size, CHANNELS)), 1), tf.float32)
    order = {key: options[key] for key in FIRST if key in options}
    x = tf.transpose(x, [0, 3, 1, 2]) if order else x
    ends = [] if "Global" in kind.__name__ else [R.GatherPlane(grid=grid, **order)]
    layer = kind(grid=grid, **options)
    y, slopes = gradients([R.CutPlane(grid=grid, **order), layer, *ends], x)
    reference = layer.whole_layer()
    expected, expected_slopes = gradients([reference], x)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    np.testing.assert_allclose(slopes[0], expected_slopes[0], atol=1e-5)
    slopes_of_weights = zip(slopes[1:], expected_slopes[1:], layer.trainable_weights, strict=True)
    for slope, expected_slope, variable in slopes_of_weights:
        cut = cut_of(variable)
        # What an optimizer on the grid does: the average of whole weights' gradients.
        total = slope if cut is not None else ringar.allreduce(slope, name=variable.name)
        scale = max(1.0, float(np.abs(expected_slope).max()))
        np.testing.assert_allclose(
            total, nets.part(expected_slope, variable), atol=1e-5 * scale, err_msg=variable.path
        )


@pytest.mark.parametrize("name", LAYERS)
def test_strips(open_grid: OpenGrid, name: str, size: int) -> None:
    check(name, open_grid(size))


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("name", LAYERS)
def test_tiles(open_grid: OpenGrid, name: str, size: int) -> None:
    """Columns, and with four ranks corners, which come from the rank that has them."""
    check(name, open_grid(nets.TILES[size][1]))


@pytest.mark.ranks(4)
def test_groups_of_strips_do_not_mix(open_grid: OpenGrid, rank: int) -> None:
    """Two models of two strips, on images of their own."""
    grid = open_grid(2)
    x = tf.fill([1, 6, 5, 1], float(grid.group + 1))
    layers: list[Any] = [
        R.CutPlane(grid=grid),
        R.PartitionedConv2D(1, 3, padding="same", kernel_initializer="ones", grid=grid),
        R.GatherPlane(grid=grid),
    ]
    for layer in layers:
        x = layer(x)
    assert float(tf.reduce_max(x)) == 9 * (grid.group + 1)


def test_the_least_half_precision(open_grid: OpenGrid, size: int) -> None:
    """Padding of maxima is less than all numbers, also where few are negative."""
    grid = open_grid(size)
    x = tf.fill([1, 5, 4, 1], tf.constant(-3e4, tf.float16))
    x = R.CutPlane(grid=grid, dtype="float16")(x)
    pool = R.PartitionedMaxPooling2D(3, strides=1, padding="same", grid=grid, dtype="float16")
    assert float(tf.reduce_max(pool(x))) == np.float16(-3e4)
    assert float(tf.reduce_min(pool(x))) == np.float16(-3e4)


def test_means_at_the_edge_in_double_precision(open_grid: OpenGrid, size: int) -> None:
    """The shares of a window that are in the plane are no float32 numbers."""
    grid = open_grid(size)
    image = np.random.default_rng(0).normal(size=(1, 5, 4, 1))
    options: dict[str, Any] = {"strides": 1, "padding": "same", "dtype": "float64"}
    x = R.PartitionedAveragePooling2D(3, grid=grid, **options)(
        R.CutPlane(grid=grid, dtype="float64")(tf.constant(image))
    )
    means = R.GatherPlane(grid=grid, dtype="float64")(x)
    expected = K.AveragePooling2D(3, **options)(image)
    np.testing.assert_allclose(means, expected, rtol=1e-12)
