"""Small nets, data for them, and the gradients of both ways."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringar.parallel.scan.sequential import Sequential

layers = keras.layers

#: Layers, and the shape of an example.
NETS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "dense": (
        lambda: [
            layers.Dense(9, activation="relu"), layers.Dense(7), layers.Activation("tanh"),
            layers.Dense(6, activation="sigmoid", use_bias=False), layers.Dense(4),
        ],
        (5,),
    ),
    "dense on rank 3": (
        lambda: [
            layers.Dense(4, activation="tanh"), layers.Dense(3, activation="relu"),
            layers.Flatten(), layers.Dense(4),
        ],
        (3, 5),
    ),
    "convolutions": (
        lambda: [
            layers.Conv2D(4, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(6, 3, strides=2, padding="same", activation="tanh"),
            layers.Conv2D(4, 3, dilation_rate=2, padding="same"),
            layers.ReLU(),
            layers.MaxPooling2D(2, 1, padding="same"),
            layers.Flatten(),
            layers.Dense(8, activation="relu"),
            layers.Dense(4, activation="softmax"),
        ],
        (9, 8, 2),
    ),
    "shapes": (
        lambda: [
            layers.Reshape((4, 3, 1)), layers.Conv2D(2, 2), layers.Reshape((-1,)),
            layers.Dense(4, activation="gelu"),
        ],
        (12,),
    ),
    "deep": (lambda: [*(layers.Dense(5, activation="tanh") for _ in range(11)), layers.Dense(4)],
             (5,)),
    "first layers without weights": (
        lambda: [
            layers.Activation("tanh"), layers.MaxPooling2D(), layers.Conv2D(3, 2),
            layers.Flatten(), layers.Dense(4),
        ],
        (6, 6, 2),
    ),
    "last layers without weights": (
        lambda: [layers.Conv2D(4, 3), layers.Activation("relu"), layers.MaxPooling2D(2),
                 layers.Flatten(), layers.Softmax()],
        (4, 4, 2),
    ),
    "dropout": (
        lambda: [layers.Dense(20, activation="relu"), layers.Dropout(0.4, seed=5),
                 layers.Dense(20), layers.Dropout(0.0), layers.Dense(4)],
        (5,),
    ),
}  # fmt: skip

ROWS = 6


def build(name: str, kind: Any = Sequential, **options: Any) -> Any:
    """One of `NETS`, with weights that depend on nothing else."""
    keras.utils.set_random_seed(7)
    make, shape = NETS[name]
    return kind([keras.Input(shape), *make()], **options)


def data(name: str, rows: int = ROWS, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Examples for one of `NETS`, and targets of four numbers."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, *NETS[name][1])).astype(np.float32)
    y = random.random(size=(rows, 4)).astype(np.float32)
    return x, y / y.sum(axis=1, keepdims=True)


class Recorder(keras.optimizers.SGD):
    """Records the gradients that it is given."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        self.gradients = [tf.convert_to_tensor(gradient).numpy() for gradient in grads]
        return super().apply(grads, trainable_variables)


def gradients(model: Any, x: np.ndarray, y: np.ndarray, **options: Any) -> list[np.ndarray]:
    """Return the gradients of one training step."""
    model.compile(Recorder(0.0), "mse", run_eagerly=True)
    model.fit(x, y, batch_size=len(x), verbose=0, **options)
    recorded: list[np.ndarray] = model.optimizer.gradients
    return recorded
