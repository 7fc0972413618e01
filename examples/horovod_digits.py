"""A script as in Horovod's documentation, on images of handwritten digits: only the import is new.

    horovodrun -np 2 python examples/horovod_digits.py
    horovodrun -np 2 python examples/horovod_digits.py --tape

With `fit` two batches add up their gradients before the ranks reduce them. `--tape` trains by a
loop of its own with a gradient tape, and broadcasts after the first step. scikit-learn brings the
digits (1,797 images of 8 x 8). Horovod's users choose their data by `shard`, as here.

Needs scikit-learn: `pip install --editable '.[tensorflow,examples]'` in the checkout.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import ringar.horovod.tensorflow as hvd
import ringar.horovod.tensorflow.keras as hvd_keras

BATCH = 32


def main() -> None:
    """Train, then print the accuracy on data that no rank has trained on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tape", action="store_true")
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    keras.utils.set_random_seed(hvd.rank())

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = digits.data[order].astype("float32") / 16, digits.target[order]
    train = tf.data.Dataset.from_tensor_slices((x[:1437], y[:1437]))
    # The same number of batches on each rank.
    rows = 1437 // hvd.size() // (2 * BATCH) * 2 * BATCH
    data = train.shard(hvd.size(), hvd.rank()).shuffle(rows).take(rows).batch(BATCH)

    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    (by_tape if options.tape else by_fit)(model, data, options.epochs)
    if hvd.rank() == 0:
        accuracy = (model.predict(x[1437:], verbose=0).argmax(1) == y[1437:]).mean()
        print(f"accuracy on {hvd.size()} ranks: {accuracy:.2%}")


def by_fit(model: keras.Model, data: tf.data.Dataset, epochs: int) -> None:
    """Train as Horovod's example for Keras does."""
    rate = 0.002 * hvd.size()
    optimizer = hvd_keras.DistributedOptimizer(
        keras.optimizers.Adam(rate), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd_keras.callbacks.MetricAverageCallback(),
        hvd_keras.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=3),
    ]
    verbose = 2 if hvd.rank() == 0 else 0
    model.fit(data, epochs=epochs, shuffle=False, callbacks=callbacks, verbose=verbose)


def by_tape(model: keras.Model, data: tf.data.Dataset, epochs: int) -> None:
    """Train as Horovod's example for TensorFlow 2 does."""
    loss = keras.losses.SparseCategoricalCrossentropy()
    optimizer = keras.optimizers.Adam(0.002 * hvd.size())

    @tf.function
    def training_step(images: tf.Tensor, labels: tf.Tensor, first_batch: bool) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)
        return value

    for step, (images, labels) in enumerate(data.repeat(epochs)):
        value = training_step(images, labels, step == 0)
        if step % 40 == 0 and hvd.rank() == 0:
            print(f"step {step}: loss {float(value):.3f}")


if __name__ == "__main__":
    main()
