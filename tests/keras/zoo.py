"""Small versions of Keras' own example models, with their data and losses.

Random numbers that a model needs are part of its data, so that one process and several ranks use
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

layers, ops = keras.layers, keras.ops

#: Two batches of 12 rows and one of 7, which no number of ranks but 1 divides.
BATCH, ROWS = 12, 31
WORDS, LENGTH = 20, 6

Data = tuple[Any, ...]


@dataclass(frozen=True)
class Example:
    """Describe one example: a model, its data and how it is compiled.

    Attributes:
        model: makes the model with a class of layers for batch normalization.
        data: makes the data, from a generator of random numbers.
        compiled: makes further arguments of `compile`.
        optimizers: the number of optimizers.
    """

    model: Callable[[Any], keras.Model]
    data: Callable[[np.random.Generator], Data]
    compiled: Callable[[], dict[str, Any]] = dict
    optimizers: int = 1


def _images(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(ROWS, 8, 8, 2)).astype("float32")


def _classes(rng: np.random.Generator, count: int = 3) -> np.ndarray:
    return rng.integers(0, count, ROWS).astype("int32")


def _words(rng: np.random.Generator, padded: bool = False) -> np.ndarray:
    words = rng.integers(1, WORDS, (ROWS, LENGTH)).astype("int32")
    if padded:
        words[np.arange(LENGTH) >= rng.integers(1, LENGTH + 1, (ROWS, 1))] = 0
    return words


def _vectors(rng: np.random.Generator, size: int = 5) -> np.ndarray:
    return rng.normal(size=(ROWS, size)).astype("float32")


def _resnet(normalization: Any) -> keras.Model:
    x = inputs = keras.Input((8, 8, 2))
    for filters, strides in ((4, 1), (6, 2)):
        shortcut = layers.Conv2D(filters, 1, strides)(x)
        x = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
        x = layers.ReLU()(normalization()(x))
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(normalization()(x) + shortcut)
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))


def _attention_block(x: Any) -> Any:
    attended = layers.MultiHeadAttention(2, 4)(x, x)
    x = layers.LayerNormalization(epsilon=1e-3)(x + attended)
    hidden = layers.Dense(8, activation="gelu")(x)
    return layers.LayerNormalization(epsilon=1e-3)(x + layers.Dense(x.shape[-1])(hidden))


@keras.saving.register_keras_serializable("tests")
class Positions(keras.Layer):
    """Add an embedding of positions, whose gradient has a row per position."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.embedding = layers.Embedding(count, size)

    def call(self, x: Any) -> Any:
        return x + self.embedding(ops.arange(ops.shape(x)[1]))


def _vit(_: Any) -> keras.Model:
    inputs = keras.Input((8, 8, 2))
    patches = layers.Reshape((4, 8))(layers.Conv2D(8, 4, 4)(inputs))
    x = _attention_block(Positions(4, 8)(patches))
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))


def _transformer(_: Any) -> keras.Model:
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = _attention_block(Positions(LENGTH, 8)(layers.Embedding(WORDS, 8)(inputs)))
    x = layers.Dense(6, activation="gelu")(layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, layers.Dense(3)(x))


def _lstm(_: Any) -> keras.Model:
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 6)(inputs)
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
    return keras.Model(inputs, layers.Dense(3)(layers.LSTM(4)(x)))


def _tagger(_: Any) -> keras.Model:
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 6, mask_zero=True)(inputs)
    return keras.Model(inputs, layers.Dense(3)(layers.SimpleRNN(5, return_sequences=True)(x)))


def _unet(_: Any) -> keras.Model:
    inputs = keras.Input((8, 8, 2))
    fine = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    coarse = layers.Conv2D(6, 3, padding="same", activation="relu")(layers.MaxPooling2D()(fine))
    up = layers.Conv2DTranspose(4, 2, 2)(coarse)
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(layers.Concatenate()([fine, up]))
    return keras.Model(inputs, layers.Conv2D(3, 1)(x))


class VAE(keras.Model):
    """A variational autoencoder with its own `train_step` and trackers, and without `call`."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([layers.Dense(6, activation="relu"), layers.Dense(4)])
        self.decoder = keras.Sequential([layers.Dense(6, activation="relu"), layers.Dense(5)])
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, noise = data[0]
        with tf.GradientTape() as tape:
            mean, log_var = ops.split(self.encoder(x), 2, axis=-1)
            y = self.decoder(mean + ops.exp(0.5 * log_var) * ops.cast(noise, mean.dtype))
            kl = -0.5 * ops.mean(1 + log_var - ops.square(mean) - ops.exp(log_var), axis=-1)
            loss = ops.mean(
                ops.cast(ops.mean(ops.square(y - ops.cast(x, y.dtype)), -1) + kl, "float32")
            )
            scaled = self.optimizer.scale_loss(loss)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(scaled, weights), weights, strict=True))
        self.loss_tracker.update_state(loss, sample_weight=ops.shape(x)[0])
        return {"loss": self.loss_tracker.result()}


class GAN(keras.Model):
    """A generator and a discriminator, with an optimizer each, as in Keras' own example."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential([layers.Dense(6, activation="relu"), layers.Dense(5)])
        self.discriminator = keras.Sequential([layers.Dense(6, activation="relu"), layers.Dense(1)])
        self.g_tracker = keras.metrics.Mean(name="g_loss")
        self.d_tracker = keras.metrics.Mean(name="loss")

    def compile(self, optimizer: Any, g_optimizer: Any, **options: Any) -> None:
        super().compile(optimizer=optimizer, **options)
        self.g_optimizer = g_optimizer

    @property
    def metrics(self) -> list[Any]:
        return [self.d_tracker, self.g_tracker]

    def train_step(self, data: Any) -> dict[str, Any]:
        real, noise = data[0]
        rows = ops.shape(real)[0]
        loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
        fake = self.generator(noise)
        images = ops.concatenate([fake, ops.cast(real, fake.dtype)], 0)
        labels = ops.concatenate([ops.ones((rows, 1)), ops.zeros((rows, 1))], 0)
        with tf.GradientTape() as tape:
            d_loss = loss_of(labels, self.discriminator(images))
            scaled = self.optimizer.scale_loss(d_loss)
        weights = self.discriminator.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(scaled, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            g_loss = loss_of(ops.zeros((rows, 1)), self.discriminator(self.generator(noise)))
            scaled = self.g_optimizer.scale_loss(g_loss)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(scaled, weights), weights, strict=True))
        self.d_tracker.update_state(d_loss, sample_weight=rows)
        self.g_tracker.update_state(g_loss, sample_weight=rows)
        return {"loss": self.d_tracker.result(), "g_loss": self.g_tracker.result()}


@keras.saving.register_keras_serializable("tests")
class Sparsity(keras.Layer):
    """Add a loss on what passes: a mean over the batch, as `add_loss` is to be used."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * ops.mean(ops.square(ops.cast(x, "float32"))))
        return x


def _outputs(_: Any) -> keras.Model:
    inputs = keras.Input((5,))
    decay = keras.regularizers.L2(0.01)
    x = Sparsity()(layers.Dense(6, activation="relu", kernel_regularizer=decay)(inputs))
    return keras.Model(
        inputs,
        {"kind": layers.Dense(3, name="kind")(x), "size": layers.Dense(1, name="size")(x)},
    )


def _shared(_: Any) -> keras.Model:
    first, second = keras.Input((5,)), keras.Input((5,))
    tower = keras.Sequential([layers.Dense(6, activation="relu"), layers.Dense(4)])
    difference = layers.Subtract()([tower(first), tower(second)])
    return keras.Model([first, second], layers.Dense(1)(difference))


def _dense(_: Any) -> keras.Model:
    return keras.Sequential(
        [keras.Input((5,)), layers.Dense(6, activation="relu"), layers.Dense(1)]
    )


def _cross_entropy() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _classifier() -> dict[str, Any]:
    # No accuracy: two classes that are almost alike change places by rounding.
    metric = keras.metrics.SparseCategoricalCrossentropy(name="entropy", from_logits=True)
    return {"loss": _cross_entropy(), "metrics": [metric]}


EXAMPLES = {
    "resnet": Example(_resnet, lambda rng: (_images(rng), _classes(rng)), _classifier),
    "vit": Example(_vit, lambda rng: (_images(rng), _classes(rng)), _classifier),
    "transformer": Example(_transformer, lambda rng: (_words(rng), _classes(rng)), _classifier),
    "lstm": Example(_lstm, lambda rng: (_words(rng), _classes(rng)), _classifier),
    "tagger": Example(
        _tagger,
        lambda rng: (words := _words(rng, padded=True), words % 3),
        lambda: {"loss": _cross_entropy()},
    ),
    "unet": Example(
        _unet,
        lambda rng: (_images(rng), rng.integers(0, 3, (ROWS, 8, 8)).astype("int32")),
        _classifier,
    ),
    "vae": Example(lambda _: VAE(), lambda rng: ((_vectors(rng), _vectors(rng, 2)),)),
    "gan": Example(lambda _: GAN(), lambda rng: ((_vectors(rng), _vectors(rng, 3)),), optimizers=2),
    "outputs": Example(
        _outputs,
        lambda rng: (_vectors(rng), {"kind": _classes(rng), "size": _vectors(rng, 1)}),
        lambda: {
            "loss": {"kind": _cross_entropy(), "size": "mse"},
            "loss_weights": {"kind": 1.0, "size": 0.5},
            "metrics": {"size": ["mae", keras.metrics.RootMeanSquaredError()]},
        },
    ),
    "sample_weights": Example(
        _dense,
        lambda rng: (_vectors(rng), _vectors(rng, 1), rng.uniform(0, 2, ROWS).astype("float32")),
        lambda: {"loss": "mse", "weighted_metrics": ["mae"]},
    ),
    "shared": Example(
        _shared,
        lambda rng: ((_vectors(rng), _vectors(rng)), _vectors(rng, 1)),
        lambda: {"loss": "mse"},
    ),
}
