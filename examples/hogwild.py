"""Sparse logistic regression on images of digits, by ranks that share weights without locks.

    ringarrun -np 2 python examples/hogwild.py
    ringarrun -np 2 python examples/hogwild.py --racy
    ringarrun -np 2 python examples/hogwild.py --allreduce

Each of the 64 pixels of an image has one of 17 shades. The 1,088 pairs of a pixel and a shade are
binary features, 64 of them not zero: each has a weight for every class, and the sum of an image's
64 rows is its logits. This is the kind of problem for which Niu et al. have made Hogwild! (2011):
a step with one image changes 64 rows of the table, and ranks do not wait for each other.

The digits are scikit-learn's: 1,797 images of 8 x 8.

Needs scikit-learn: `pip install --editable '.[tensorflow,examples]'` in the checkout.
"""

from __future__ import annotations

import argparse
import time

import keras
import numpy as np

import ringar

PIXELS, SHADES, CLASSES = 64, 17, 10

Images = tuple[np.ndarray, np.ndarray]


def main() -> None:
    """Train, then print speed and accuracy."""
    options = parse()
    ringar.init()
    keras.utils.set_random_seed(options.seed)
    train, test = load()
    x, y = ringar.data.shard(train)
    model = make_model()
    model.compile(make_optimizer(options), "sparse_categorical_crossentropy", metrics=["accuracy"])
    watch = StopWatch()
    callbacks = [ringar.callbacks.Distributed(), watch]
    model.fit(x, y, options.batch_size, options.epochs, callbacks=callbacks)
    if ringar.rank() == 0:
        _, accuracy = model.evaluate(*test, verbose=0)
        speed = len(x) * ringar.size() / float(np.median(watch.seconds))
        print_table(options, speed, accuracy)


def make_model() -> keras.Model:
    """Return the regression: the mean of the rows of an image's features, and a softmax."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((PIXELS,), dtype="int32"),
            ringar.layers.HogwildEmbedding(PIXELS * SHADES, CLASSES),
            layers.GlobalAveragePooling1D(),
            layers.Softmax(),
        ]
    )


def make_optimizer(options: argparse.Namespace) -> keras.optimizers.Optimizer:
    """Return SGD whose ranks share weights, or with `--allreduce` add up gradients."""
    # The mean of the rows is a 64th of their sum.
    optimizer = keras.optimizers.SGD(options.learning_rate * PIXELS)
    if options.allreduce:
        return ringar.DistributedOptimizer(optimizer)
    return ringar.Hogwild(optimizer, atomic=not options.racy)


def load() -> tuple[Images, Images]:
    """Return train and test data: features, int32 [n, 64], and classes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = digits.data.astype("int32") + SHADES * np.arange(PIXELS, dtype="int32")
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], digits.target[order]
    return (x[:1437], y[:1437]), (x[1437:], y[1437:])


class StopWatch(keras.callbacks.Callback):
    """Time each epoch, but the first, which waits for a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Start the watch."""
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Stop the watch."""
        if epoch > 0:
            self.seconds.append(time.perf_counter() - self._start)


def print_table(options: argparse.Namespace, speed: float, accuracy: float) -> None:
    """Print the way, the speed and the accuracy."""
    way = "allreduce" if options.allreduce else "racy" if options.racy else "atomic"
    print()
    print("| ranks | additions | images/s | accuracy |")
    print("|------:|-----------|---------:|---------:|")
    print(f"| {ringar.size():5} | {way:9} | {speed:8,.0f} | {accuracy:8.2%} |")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--racy", action="store_true", help="additions that may be lost")
    way.add_argument("--allreduce", action="store_true", help="synchronous steps, to compare with")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=4, help="images per rank and step")
    parser.add_argument("--learning-rate", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.epochs < 2:
        parser.error("the speed is that of the second epoch and later ones: --epochs 2 at least")
    return options


if __name__ == "__main__":
    main()
