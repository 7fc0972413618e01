"""A net on images with all layers that work on tiles, and the same in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ringar
from ringar.sharding.cut import cut_of
from tests import one_process
from tests.comparison import assert_all_close

IMAGE = (13, 11, 3)
CLASSES, BATCH, STEPS = 4, 8, 5
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

K, R = keras.layers, ringar.layers

TILES: dict[int, list[tuple[int, int]]] = {
    1: [(1, 1)],
    2: [(2, 1), (1, 2)],
    3: [(3, 1)],
    4: [(4, 1), (2, 2)],
}
"""The cuts to try, by the number of ranks."""


def cut_net(image: Sequence[int] = IMAGE) -> keras.Model:
    """Strides, dilation, both paddings, a branch, untied weights, statistics over all tiles."""
    images = x = keras.Input(tuple(image))
    x = R.CutPlane(name="cut")(x)
    x = R.PartitionedConv2D(6, 3, strides=2, padding="same", use_bias=False, name="conv1")(x)
    x = K.ReLU()(R.SyncBatchNormalization(name="norm")(x))
    y = R.PartitionedConv2D(6, 3, padding="same", dilation_rate=2, name="conv2")(x)
    x = K.Add()([x, y])
    x = R.PartitionedMaxPooling2D(3, strides=1, padding="same", name="pool1")(x)
    x = R.PartitionedLocallyConnected2D(5, 2, activation="tanh", name="local")(x)
    x = R.PartitionedAveragePooling2D(2, strides=1, padding="same", name="pool2")(x)
    mean = R.PartitionedGlobalAveragePooling2D(name="mean")(x)
    x = K.Flatten()(R.GatherPlane(name="join")(x))
    x = K.Concatenate()([x, mean])
    x = R.SplitDense(12, reads="whole", activation="relu", name="fc1")(x)
    x = R.Gather(name="units")(R.SplitDense(CLASSES * 3, name="fc2")(x))
    return keras.Model(images, x)


def whole_net(image: Sequence[int] = IMAGE) -> keras.Model:
    """The same on one process."""
    images = x = keras.Input(tuple(image))
    x = K.Conv2D(6, 3, strides=2, padding="same", use_bias=False, name="conv1")(x)
    x = K.ReLU()(K.BatchNormalization(name="norm")(x))
    y = K.Conv2D(6, 3, padding="same", dilation_rate=2, name="conv2")(x)
    x = K.Add()([x, y])
    x = K.MaxPooling2D(3, strides=1, padding="same", name="pool1")(x)
    x = R.LocallyConnected2D(5, 2, activation="tanh", name="local")(x)
    x = K.AveragePooling2D(2, strides=1, padding="same", name="pool2")(x)
    mean = K.GlobalAveragePooling2D(name="mean")(x)
    x = K.Concatenate()([K.Flatten()(x), mean])
    x = K.Dense(12, activation="relu", name="fc1")(x)
    return keras.Model(images, K.Dense(CLASSES * 3, name="fc2")(x))


def strip_net(shape: Sequence[int], units: int = 6) -> keras.Model:
    """Given strips of 12 rows in all, and a dense layer that reads the whole plane."""
    strip = x = keras.Input(tuple(shape))
    x = R.OwnTile(size=(12, IMAGE[1]))(x)
    x = R.PartitionedConv2D(4, 3, padding="same", activation="relu", name="conv1")(x)
    x = R.FlattenPlane()(x)
    x = R.Sum()(R.SplitDense(units, reads="own", writes="addend", name="fc1")(x))
    return keras.Model(strip, x)


def whole_strip_net(units: int = 6) -> keras.Model:
    """The same on one process."""
    images = x = keras.Input((12, *IMAGE[1:]))
    x = K.Conv2D(4, 3, padding="same", activation="relu", name="conv1")(x)
    return keras.Model(images, K.Dense(units, name="fc1")(K.Flatten()(x)))


def seeded(make: Any, *args: Any) -> keras.Model:
    """The same initial weights for both."""
    keras.utils.set_random_seed(3)
    model: keras.Model = make(*args)
    return model


def images(count: int, shape: Sequence[int] = IMAGE) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, *shape)).astype("float32")


def labels(count: int) -> np.ndarray:
    return np.random.default_rng(2).integers(0, CLASSES, count)


def dataset() -> tf.data.Dataset:
    count = BATCH * STEPS
    return tf.data.Dataset.from_tensor_slices((images(count), labels(count)))


def train_whole(model: keras.Model, optimizer: Any) -> keras.Model:
    """Five steps on one process, plain Keras."""
    model.compile(optimizer, LOSS)
    one_process.fit(model, dataset().batch(BATCH))
    return model


def train(model: keras.Model, optimizer: Any, grid: ringar.parallel.Grid) -> keras.Model:
    """The same on all ranks, with the same global batches."""
    model.compile(ringar.DistributedOptimizer(optimizer, grid=grid), LOSS)
    share = ringar.data.shard(dataset(), grid=grid).batch(BATCH // grid.data)
    model.fit(share, verbose=0, callbacks=[ringar.callbacks.Distributed()])
    return model


def part(value: np.ndarray, variable: Any) -> np.ndarray:
    """Of a whole variable's value, what this rank has of it."""
    cut = cut_of(variable)
    return value if cut is None else cut.part(value)


def assert_same_weights(model: keras.Model, reference: keras.Model) -> None:
    assert model.weights
    pairs = zip(reference.weights, model.weights, strict=True)
    expected = [part(original.numpy(), weight) for original, weight in pairs]
    assert_all_close(model.weights, expected, atol=1e-5)
