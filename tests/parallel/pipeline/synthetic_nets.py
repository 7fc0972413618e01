"""A small net in modules, and decoupled training of it, written down again for one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests import one_process

FEATURES, UNITS, CLASSES = 6, 8, 3
layers = keras.layers

Batches = list[tuple[np.ndarray, np.ndarray]]


def cuts(modules: int) -> list[str]:
    return [f"dense{i}" for i in range(modules - 1)]


def net(seed: int = 1) -> keras.Model:
    """Four hidden layers; the first has a penalty."""
    keras.utils.set_random_seed(seed)
    hidden = [
        layers.Dense(
            UNITS, activation="tanh", name=f"dense{i}",
            kernel_regularizer=keras.regularizers.L2(0.01) if i == 0 else None,
        )
        for i in range(4)
    ]  # fmt: skip
    return keras.Sequential(
        [keras.Input((FEATURES,)), *hidden, layers.Dense(CLASSES, name="out")], name="net"
    )


def batches(count: int, rows: Sequence[int] = (8,), seed: int = 5) -> Batches:
    """Numbers, and which of the first three is the largest."""
    random = np.random.default_rng(seed)
    pairs = []
    for i in range(count):
        x = random.normal(size=(rows[i % len(rows)], FEATURES)).astype(np.float32)
        pairs.append((x, x[:, :CLASSES].argmax(1).astype(np.int64)))
    return pairs


def dataset(data: Batches) -> tf.data.Dataset:
    signature = (tf.TensorSpec([None, FEATURES], tf.float32), tf.TensorSpec([None], tf.int64))
    return tf.data.Dataset.from_generator(
        lambda: iter(data), output_signature=signature
    ).apply(tf.data.experimental.assert_cardinality(len(data)))  # fmt: skip


def loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def synthesizer(inputs: list[tf.TensorSpec], outputs: list[tf.TensorSpec]) -> keras.Model:
    """A small net that does not begin with zeros, always with the same weights."""
    tensors = [keras.Input(batch_shape=spec.shape) for spec in inputs]
    x = layers.Concatenate()(tensors) if len(tensors) > 1 else tensors[0]
    for i, units in enumerate((5, outputs[0].shape[-1])):
        kernel = keras.initializers.RandomNormal(0.3, seed=i)
        x = layers.Dense(
            units, "tanh" if i == 0 else None, kernel_initializer=kernel, name=f"predicting{i}"
        )(x)
    return keras.Model(tensors, [x])


def sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1, momentum=0.5)


def train_decoupled(
    model: keras.Model, data: Batches, modules: int, conditioned: bool, mix: float
) -> list[Any]:
    """The paper's rules, one batch after the other: each synthesizer has learned from all before.

    Returns:
        The weights of each synthesizer.
    """
    return one_process.train(
        model, lambda: _train_decoupled(model, data, modules, conditioned, mix)
    )


def _train_decoupled(
    model: keras.Model, data: Batches, modules: int, conditioned: bool, mix: float
) -> list[Any]:
    parts = [[layer] for layer in model.layers[: modules - 1]] + [model.layers[modules - 1 :]]
    optimizers = [sgd() for _ in parts]
    hidden = tf.TensorSpec([None, UNITS], tf.float32)
    specs = [hidden, tf.TensorSpec([None, CLASSES], tf.float32)] if conditioned else [hidden]
    nets = [synthesizer(specs, [hidden]) for _ in parts[1:]]
    learners = [sgd() for _ in nets]
    for x, y in data:
        rows, labels = len(x), [tf.one_hot(y, CLASSES)] if conditioned else []
        activations, outputs, tapes = [tf.constant(x)], [], []
        for part in parts:
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(activations[-1])
                h = activations[-1]
                for layer in part:
                    h = layer(h)
                penalty = sum((sum(layer.losses) for layer in part), tf.constant(0.0))
                last = loss()(y, h) if part is parts[-1] else None
            tapes.append((tape, penalty, last))
            outputs.append(h)
            activations.append(tf.constant(h.numpy()))
        synthetic = [
            _first(m([h, *labels])) / rows for m, h in zip(nets, outputs[:-1], strict=True)
        ]  # fmt: skip
        upstream: Any = None
        for k in reversed(range(modules)):
            (tape, penalty, last), part = tapes[k], parts[k]
            weights = [v for layer in part for v in layer.trainable_variables]
            top = k == modules - 1
            outcome = (tape, outputs[k], penalty, last)
            gradients = _back(*outcome, weights, None if top else synthetic[k])
            mixed = None if top else (1 - mix) * synthetic[k] + mix * upstream
            message = _back(*outcome, activations[k], mixed) if k > 0 else None
            optimizers[k].apply(gradients, weights)
            if not top:
                _learn(nets[k], learners[k], [outputs[k], *labels], upstream * rows)
            upstream = message
    return [net.get_weights() for net in nets]


def _back(
    tape: tf.GradientTape, output: Any, penalty: Any, last: Any, sources: Any, upstream: Any
) -> Any:
    """Return gradients of the loss, or of a hidden layer that has the gradient `upstream`."""
    if upstream is None:
        return tape.gradient([last, penalty], sources)
    ones = tf.ones_like(penalty)
    return tape.gradient([output, penalty], sources, output_gradients=[upstream, ones])


def _first(outputs: Any) -> Any:
    return keras.tree.flatten(outputs)[0]


def _learn(model: keras.Model, optimizer: Any, inputs: Any, target: Any) -> None:
    with tf.GradientTape() as tape:
        error = tf.reduce_mean(tf.reduce_sum((_first(model(inputs)) - target) ** 2, -1))
    variables = model.trainable_variables
    optimizer.apply(tape.gradient(error, variables), variables)
