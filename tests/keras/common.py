"""What the tests of ringar.keras share: a small model, its data, and comparisons."""

from __future__ import annotations

import hashlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ringar

STEPS = 20
GLOBAL_BATCH = 24  # goes round on 1, 2, 3 and 4 ranks


def regression(rows: int = STEPS * GLOBAL_BATCH, seed: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 6 features and their targets, float32; the same on every rank."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    y = np.sin(x @ rng.normal(size=(6, 1))).astype(np.float32)
    return x, y


def tokens(rows: int = STEPS * GLOBAL_BATCH, seed: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 4 words out of 12 and their targets; the same on every rank."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 12, size=(rows, 4)).astype(np.int32)
    return x, (x.sum(axis=1, keepdims=True) / 24).astype(np.float32)


def dense_model(seed: int = 0, **options: Any) -> keras.Model:
    """Two dense layers, initialized from `seed`."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh", **options),
            keras.layers.Dense(1, **options),
        ]
    )


def embedding_model(seed: int = 0) -> keras.Model:
    """An embedding, whose gradients are sparse, and a dense layer, initialized from `seed`."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(12, 5),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


class TokensAndPositions(keras.layers.Layer):
    """Embed 4 tokens twice by one table and once by another, and add the embedding of positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shared, self.single = (keras.layers.Embedding(12, width) for _ in range(2))
        self.positions = keras.layers.Embedding(4, width)

    def build(self, shape: Any) -> None:
        for table in (self.shared, self.single, self.positions):
            table.build(shape)

    def call(self, x: Any) -> Any:
        tokens = self.shared(x) * self.shared(keras.ops.flip(x, axis=1)) + self.single(x)
        return tokens + self.positions(keras.ops.arange(4))


def batches(data: tuple[np.ndarray, np.ndarray], batch: int = GLOBAL_BATCH) -> tf.data.Dataset:
    """The data in batches, in order, for one process."""
    return tf.data.Dataset.from_tensor_slices(data).batch(batch, drop_remainder=True)


def own_batches(data: tuple[np.ndarray, np.ndarray], batch: int = GLOBAL_BATCH) -> tf.data.Dataset:
    """This rank's part: the k-th batches of all ranks together are the k-th of `batches`."""
    examples = ringar.data.shard(tf.data.Dataset.from_tensor_slices(data))
    return examples.batch(batch // ringar.size(), drop_remainder=True)


def summed(optimizer: Any) -> Any:
    """A plain optimizer that adds slices of equal rows, as a distributed one does."""
    apply = optimizer.apply

    def dense(grads: Any, trainable_variables: Any = None) -> None:
        dense_ones = [None if g is None else tf.convert_to_tensor(g) for g in grads]
        apply(dense_ones, trainable_variables)

    object.__setattr__(optimizer, "apply", dense)  # unseen by Keras' tracking
    return optimizer


def number(variable: Any) -> float:
    """The value of a scalar variable; early Keras 3 has no float() for it."""
    return float(keras.ops.convert_to_numpy(variable))


def values(model: keras.Model) -> list[np.ndarray]:
    """The model's weights as arrays."""
    return [np.array(keras.ops.convert_to_numpy(weight)) for weight in model.weights]


def digest(model: keras.Model) -> str:
    """A digest of all bits of the weights and of the optimizer's state."""
    state = hashlib.sha256()
    for variable in [*model.weights, *model.optimizer.variables]:
        state.update(np.ascontiguousarray(keras.ops.convert_to_numpy(variable)).tobytes())
    return state.hexdigest()


def largest_difference(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    """The largest difference of two elements; not a number if any is not."""
    return max(float(np.max(np.abs(a - b))) for a, b in zip(first, second, strict=True))
