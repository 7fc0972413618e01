"""Small nets of AlexNet's shape, split and whole, and batches for them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ringar
from tests import one_process

CLASSES = 8
IMAGE = (15, 15, 3)
BATCH, STEPS = 8, 10
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

layers = keras.layers


def split_net(**grid: Any) -> keras.Model:
    """As the paper has it: three convolutions read their own channels, the others those of all."""
    parts = ringar.layers
    image = x = keras.Input(IMAGE)
    conv: dict[str, Any] = {"activation": "relu", "padding": "same", **grid}
    x = parts.SplitConv2D(16, 3, reads="whole", name="conv1", **conv)(x)
    x = layers.MaxPooling2D(3, 2)(x)
    x = parts.SplitConv2D(16, 3, reads="own", name="conv2", **conv)(x)
    x = parts.SplitConv2D(24, 3, reads="all", name="conv3", **conv)(x)
    x = parts.SplitConv2D(16, 3, reads="own", name="conv4", **conv)(x)
    x = parts.SplitConv2D(16, 3, reads="own", name="conv5", **conv)(x)
    x = layers.MaxPooling2D(3, 2)(x)
    x = layers.Flatten()(layers.Permute((3, 1, 2))(x))
    x = parts.SplitDense(32, reads="all", activation="relu", name="fc6", **grid)(x)
    x = parts.SplitDense(CLASSES, reads="all", name="fc8", **grid)(x)
    return keras.Model(image, parts.Gather(name="join", **grid)(x))


def whole_net(groups: int) -> keras.Model:
    """The same on one process."""
    image = x = keras.Input(IMAGE)
    conv: dict[str, Any] = {"activation": "relu", "padding": "same"}
    x = layers.Conv2D(16, 3, name="conv1", **conv)(x)
    x = layers.MaxPooling2D(3, 2)(x)
    x = layers.Conv2D(16, 3, groups=groups, name="conv2", **conv)(x)
    x = layers.Conv2D(24, 3, name="conv3", **conv)(x)
    x = layers.Conv2D(16, 3, groups=groups, name="conv4", **conv)(x)
    x = layers.Conv2D(16, 3, groups=groups, name="conv5", **conv)(x)
    x = layers.MaxPooling2D(3, 2)(x)
    x = layers.Flatten()(layers.Permute((3, 1, 2))(x))
    x = layers.Dense(32, activation="relu", name="fc6")(x)
    return keras.Model(image, layers.Dense(CLASSES, name="fc8")(x))


def hybrid_net() -> keras.Model:
    """Convolutions for the own examples, dense layers split, for the examples of all ranks."""
    parts = ringar.layers
    image = x = keras.Input(IMAGE)
    x = layers.Conv2D(12, 3, strides=2, activation="relu", name="conv1")(x)
    x = layers.Flatten()(x)
    x = parts.SplitDense(32, reads="examples", activation="relu", name="fc6")(x)
    x = parts.SplitDense(CLASSES, reads="all", name="fc8")(x)
    return keras.Model(image, parts.ReturnExamples(name="join")(x))


def whole_hybrid_net() -> keras.Model:
    """The same on one process."""
    image = x = keras.Input(IMAGE)
    x = layers.Conv2D(12, 3, strides=2, activation="relu", name="conv1")(x)
    x = layers.Dense(32, activation="relu", name="fc6")(layers.Flatten()(x))
    return keras.Model(image, layers.Dense(CLASSES, name="fc8")(x))


def addend_net() -> keras.Model:
    """Two dense layers, the first cut along its units, the second along its inputs."""
    parts = ringar.layers
    image = x = keras.Input(IMAGE)
    x = layers.Dense(4, name="fc1")(x)
    x = parts.SplitConv2D(16, 3, reads="whole", activation="relu", name="conv1")(x)
    x = parts.SplitConv2D(6, 3, reads="own", writes="addend", name="conv2")(x)
    x = layers.Flatten()(layers.ReLU()(parts.Sum(name="sum1")(x)))
    x = parts.SplitDense(32, reads="whole", activation="relu", name="fc6")(x)
    x = parts.SplitDense(CLASSES, reads="own", writes="addend", name="fc8")(x)
    return keras.Model(image, parts.Sum(name="sum2")(x))


def whole_addend_net() -> keras.Model:
    """The same on one process."""
    image = x = keras.Input(IMAGE)
    x = layers.Dense(4, name="fc1")(x)
    x = layers.Conv2D(16, 3, activation="relu", name="conv1")(x)
    x = layers.Flatten()(layers.ReLU()(layers.Conv2D(6, 3, name="conv2")(x)))
    x = layers.Dense(32, activation="relu", name="fc6")(x)
    return keras.Model(image, layers.Dense(CLASSES, name="fc8")(x))


def batches(count: int = STEPS) -> tf.data.Dataset:
    """Examples, the same on every rank, not yet in batches."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(count * BATCH, *IMAGE)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, rng.integers(0, CLASSES, len(x))))


def train_whole(
    model: keras.Model, optimizer: Any, jit: bool = False, count: int = STEPS
) -> keras.Model:
    """Trains on one process, plain Keras."""
    model.compile(optimizer, LOSS, jit_compile=jit)
    one_process.fit(model, batches(count).batch(BATCH, drop_remainder=True))
    return model


def train(
    model: keras.Model,
    optimizer: Any,
    grid: ringar.parallel.Grid,
    jit: bool = False,
    examples_differ: bool = False,
    count: int = STEPS,
) -> keras.Model:
    """Trains on all ranks, on the same global batches."""
    model.compile(ringar.DistributedOptimizer(optimizer, grid=grid), LOSS, jit_compile=jit)
    fit(model, grid, examples_differ, count)
    return model


def fit(
    model: keras.Model,
    grid: ringar.parallel.Grid,
    examples_differ: bool = False,
    count: int = STEPS,
) -> None:
    """The same of a compiled model."""
    shards = ringar.size() if examples_differ else grid.data
    share = ringar.data.shard(batches(count), grid=None if examples_differ else grid)
    callbacks = [ringar.callbacks.Distributed()]
    model.fit(share.batch(BATCH // shards, drop_remainder=True), verbose=0, callbacks=callbacks)


def outputs(model: keras.Model) -> np.ndarray:
    """Of a batch that is not among those."""
    rng = np.random.default_rng(7)
    return np.asarray(model(rng.normal(size=(BATCH, *IMAGE)).astype("float32")))
