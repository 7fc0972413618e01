"""A small sparse net, and the same net as dense layers with masks, in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ringar
from ringar.parallel import Grid, SparseNet, sparse
from tests import one_process

UNITS, BATCH, EXAMPLES = (40, 48, 48, 20), 12, 56
STEPS = -(-EXAMPLES // BATCH)  # the last batch is smaller
METHODS = ("hypergraph", "block", "random")


def random_layers(seed: int = 1) -> list[Any]:
    """Layers in which every rank has neurons and ghosts, whatever the partition."""
    return sparse.communities(UNITS, 8, 5, 0.2, seed)


def examples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    sizes = (UNITS[0], UNITS[-1])
    x, y = (rng.normal(size=(EXAMPLES, size)).astype(np.float32) for size in sizes)
    return x, y


def compiled_net(
    grid: Grid, optimizer: str | keras.optimizers.Optimizer = "sgd", **options: Any
) -> SparseNet:
    """A compiled net; `tanh` tells more than a ReLU, which many errors leave at 0."""
    net = SparseNet(random_layers(), **{"activation": "tanh", "grid": grid, **options})
    chosen = keras.optimizers.get(optimizer)
    net.compile(ringar.DistributedOptimizer(chosen, grid=grid), "mse")
    return net


def fit(net: SparseNet, epochs: int = 1) -> list[float]:
    """Train, each model group on its share of each batch; return the losses."""
    x, y = examples()
    share = ringar.data.shard(tf.data.Dataset.from_tensor_slices((x, y)), grid=net.grid)
    history = net.fit(
        share.batch(BATCH // net.grid.data),
        epochs=epochs,
        verbose=0,
        callbacks=[ringar.callbacks.Distributed()],
    )
    return list(history.history["loss"])


def flat(net: SparseNet) -> np.ndarray:
    """All weights, then all biases."""
    return np.concatenate([*(m.data for m in net.matrices()), *(net.biases() or [])])


def of_dense_layers(
    layers: Sequence[Any], make: Any, epochs: int = 1, dtype: str = "float32"
) -> np.ndarray:
    """What `flat` returns for dense layers with masks that were trained on rank 0."""

    def train() -> np.ndarray:
        matrices = [layer.tocsr() for layer in layers]
        masks = [tf.constant((m.toarray() != 0).astype(dtype)) for m in matrices]
        weights = [keras.Variable(m.toarray().astype(dtype)) for m in matrices]
        biases = [keras.Variable(np.zeros(m.shape[0], dtype)) for m in matrices]
        optimizer = keras.optimizers.get(make())
        optimizer.build([*weights, *biases])
        x, y = examples()

        @tf.function
        def gradients(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                    x = x @ tf.transpose(tf.convert_to_tensor(weight) * masks[number])
                    x = x + tf.convert_to_tensor(bias)
                    x = x if number == len(weights) - 1 else tf.tanh(x)
                loss = tf.reduce_mean((x - y) ** 2)
            slopes: list[tf.Tensor] = tape.gradient(loss, [v.value for v in (*weights, *biases)])
            return slopes

        for _ in range(epochs):
            for begin in range(0, len(x), BATCH):
                batch = x[begin : begin + BATCH], y[begin : begin + BATCH]
                optimizer.apply(gradients(*(tf.constant(a, dtype) for a in batch)))
        data = [w.numpy()[m.nonzero()] for w, m in zip(weights, matrices, strict=True)]
        return np.concatenate([*data, *(b.numpy() for b in biases)])

    return one_process.compute(train)
