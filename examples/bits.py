"""An RNN that needs the whole sequence, trained by a parallel scan and by Keras for comparison.

    python examples/bits.py
    python examples/bits.py --steps 1000 --length 1000
    ringarrun -np 2 python examples/bits.py

The task comes from Wang, Bai and Pekhimenko, "BPPSA: scaling back-propagation by parallel scan
algorithm" (MLSys 2020): each bit of a sequence is 1 with the probability 0.05 + 0.1 c, and a tanh
RNN of 20 units must find the class c out of ten. Two models start with the same weights and get the
same batches. One propagates back through the steps with a scan, the other is Keras' SimpleRNN.
Their losses are equal except for rounding, on any number of ranks, which share each batch. (Over
hundreds of steps training amplifies rounding until the curves differ, as it does with Keras' own
layer in two orders of summation.)
"""

from __future__ import annotations

import argparse
import time

import keras
import numpy as np
import tensorflow as tf

import ringar

CLASSES, UNITS = 10, 20


def main() -> None:
    """Train both models, then print their losses."""
    options = parse()
    ringar.init()
    keras.utils.set_random_seed(options.seed)
    by_scan = make_model(ringar.layers.ScanSimpleRNN(UNITS, backward="scan"))
    by_keras = make_model(keras.layers.SimpleRNN(UNITS))
    by_keras.set_weights(by_scan.get_weights())
    curves, seconds = [], []
    for model in (by_scan, by_keras):
        losses, times = train(model, options)
        curves.append(losses)
        seconds.append(float(np.median(times[1:])))  # the first step waits for a trace
    if ringar.rank() == 0:
        print_curves(curves[0], curves[1], period=max(1, options.steps // 20))
        print(f"a step: {1e3 * seconds[0]:.1f} ms by scan, {1e3 * seconds[1]:.1f} ms by Keras")


def bits(examples: int, length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences, float32 [examples, length, 1], and their classes."""
    random = np.random.default_rng(seed)
    classes = random.integers(0, CLASSES, examples)
    ones = random.random((examples, length)) < 0.05 + 0.1 * classes[:, None]
    return ones[..., None].astype(np.float32), classes


def make_model(recurrent: keras.layers.Layer) -> keras.Model:
    """Return a model of a recurrent layer with 1 input, and a logit for each class."""
    layers = keras.layers
    return keras.Sequential([keras.Input((None, 1)), recurrent, layers.Dense(CLASSES)])


def train(model: keras.Model, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Train a model; return the loss (mean over all ranks) and the seconds of each step."""
    data = bits(options.batches * options.batch_size, options.length, options.seed)
    dataset = tf.data.Dataset.from_tensor_slices(data)
    dataset = dataset.batch(options.batch_size, drop_remainder=True)
    dataset = ringar.data.shard(dataset, split_batches=True)
    optimizer = ringar.DistributedOptimizer(
        keras.optimizers.Adam(options.learning_rate, clipnorm=1.0)
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    watch = StopWatch()
    # One step per epoch: Keras reports the mean loss of an epoch.
    history = model.fit(
        dataset.repeat(), epochs=options.steps, steps_per_epoch=1, verbose=0,
        shuffle=False, callbacks=[ringar.callbacks.Distributed(), watch],
    )  # fmt: skip
    return history.history["loss"], watch.seconds


class StopWatch(keras.callbacks.Callback):
    """Time each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Start the watch."""
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Stop the watch."""
        self.seconds.append(time.perf_counter() - self._start)


def print_curves(by_scan: list[float], by_keras: list[float], period: int) -> None:
    """Print both curves and their difference."""
    print("|  step | loss, by scan | loss, Keras | difference |")
    print("|------:|--------------:|------------:|-----------:|")
    differences = [abs(a - b) for a, b in zip(by_scan, by_keras, strict=True)]
    for step in range(0, len(by_scan), period):
        print(
            f"| {step + 1:5} | {by_scan[step]:13.6f} | {by_keras[step]:11.6f} | "
            f"{differences[step]:10.2e} |"
        )
    print(f"greatest difference of {len(by_scan)} steps: {max(differences):.2e}")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=300, help="bits of a sequence")
    parser.add_argument("--steps", type=int, default=60, help="batches to train on")
    parser.add_argument("--batches", type=int, default=64, help="different ones, over and over")
    parser.add_argument("--batch-size", type=int, default=16, help="sequences of all ranks")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.batch_size < 1 or min(options.length, options.steps, options.batches) < 1:
        parser.error("all numbers must be at least 1")
    return options


if __name__ == "__main__":
    main()
