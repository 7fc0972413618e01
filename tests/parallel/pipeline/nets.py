"""Small models to cut, data for them, and the paper's update rule on one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests import one_process

IMAGE, CLASSES, ROWS = (8, 8, 3), 5, 12
layers = keras.layers

#: After which layers `residual` is cut, by the number of modules. The cuts of 2 and 4 go through
#: blocks, so that a skip connection crosses; of 4 modules, one crosses two cuts.
CUTS = {
    1: [],
    2: ["conv2"],
    3: ["add1", "add2"],
    4: ["conv1", "norm1", "conv3"],
}


def residual(seed: int = 7, **kernel: Any) -> keras.Model:
    """Convolutions with skip connections, without batch statistics; `kernel`: for all of them."""
    keras.utils.set_random_seed(seed)
    image = keras.Input(IMAGE, name="image")
    x = layers.Conv2D(6, 3, padding="same", activation="relu", name="stem", **kernel)(image)
    for block in (1, 2):
        y = layers.Conv2D(6, 3, padding="same", name=f"conv{2 * block - 1}", **kernel)(x)
        y = layers.LayerNormalization(name=f"norm{block}")(y)
        y = layers.Activation("tanh", name=f"tanh{block}")(y)
        y = layers.Conv2D(6, 3, padding="same", name=f"conv{2 * block}", **kernel)(y)
        x = layers.Add(name=f"add{block}")([x, y])
    x = layers.Flatten(name="flat")(x)
    return keras.Model(image, layers.Dense(CLASSES, name="logits")(x), name="residual")


def batches(count: int, rows: int = ROWS, seed: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images and classes; some classes are more frequent, so that there is something to learn."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, rows, *IMAGE)).astype(np.float32)
    y = (x.mean(axis=(2, 3, 4)) * 20).astype(np.int64) % CLASSES
    return list(zip(x, y, strict=True))


def dataset(data: Sequence[tuple[np.ndarray, np.ndarray]]) -> tf.data.Dataset:
    """The batches as they are."""
    return tf.data.Dataset.from_generator(
        lambda: iter(data),
        output_signature=(
            tf.TensorSpec([None, *IMAGE], tf.float32),
            tf.TensorSpec([None], tf.int64),
        ),
    ).apply(tf.data.experimental.assert_cardinality(len(data)))


def loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def modules_of(model: keras.Model, modules: int) -> list[list[Any]]:
    """The trainable variables of each module of `residual`, written down by hand."""
    order = ["stem", "conv1", "norm1", "conv2", "conv3", "norm2", "conv4", "logits"]
    ends = {
        1: [8], 2: [4, 8], 3: [4, 7, 8], 4: [2, 3, 5, 8],
    }[modules]  # fmt: skip
    variables, begin = [], 0
    for end in ends:
        names = order[begin:end]
        variables.append([v for name in names for v in model.get_layer(name).trainable_variables])
        begin = end
    return variables


def train_with_delays(
    model: keras.Model,
    data: Sequence[tuple[np.ndarray, np.ndarray]],
    delays: Sequence[int],
    make_optimizer: Callable[[], Any],
    shrinking: float = 1.0,
) -> list[float]:
    """The paper's rule: w_k <- w_k - gamma * grad_k(w^(t-d_k); x_(t-d_k)), nothing for t < d_k.

    Each module has an optimizer of its own; all change their weights at once. `shrinking`: to the
    power of the number of modules that follow, multiplies a module's gradient.

    Returns:
        The loss of each batch with the weights of its step.
    """
    return one_process.train(
        model, lambda: _train_with_delays(model, data, delays, make_optimizer, shrinking)
    )


def _train_with_delays(
    model: keras.Model,
    data: Sequence[tuple[np.ndarray, np.ndarray]],
    delays: Sequence[int],
    make_optimizer: Callable[[], Any],
    shrinking: float,
) -> list[float]:
    groups = modules_of(model, len(delays))
    optimizers = [make_optimizer() for _ in groups]
    for optimizer, variables in zip(optimizers, groups, strict=True):
        optimizer.build(variables)
    history: list[list[np.ndarray]] = []
    losses = []
    for t in range(len(data)):
        history.append(model.get_weights())
        updates = []
        for k, (variables, delay) in enumerate(zip(groups, delays, strict=True)):
            if t < delay:
                continue
            x, y = data[t - delay]
            model.set_weights(history[t - delay])
            with tf.GradientTape() as tape:
                value = loss()(y, model(x, training=True)) + sum(model.losses)
            factor = shrinking ** (len(groups) - 1 - k)
            updates.append((k, [g * factor for g in tape.gradient(value, variables)]))
        x, y = data[t]
        model.set_weights(history[t])
        losses.append(float(loss()(y, model(x, training=True)) + sum(model.losses)))
        for k, gradients in updates:
            optimizers[k].apply(gradients, groups[k])
    return losses
