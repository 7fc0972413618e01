"""Handwritten digits, learned with fewer exchanges than steps.

    ringarrun -np 4 python examples/asynchronous.py
    ringarrun -np 4 python examples/asynchronous.py --methods gradients,local,downpour --period 8

Each method trains the same net from the same weights, on the same images. The table has the part
of the test images that the net of rank 0 classifies rightly in the end. docs/asynchronous.md tells
when to take which.

Needs scikit-learn: `pip install --editable '.[tensorflow,examples]'` in the checkout.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import ringar

SGD = keras.optimizers.SGD
Images = tuple[np.ndarray, np.ndarray]

#: The methods in which all ranks meet: rate and period to the optimizer.
TOGETHER: dict[str, Callable[[float, int], Any]] = {
    "gradients": lambda rate, _: ringar.DistributedOptimizer(SGD(rate)),
    "local": lambda rate, period: ringar.LocalSGD(SGD(rate), period),
    "slowmo": lambda rate, period: ringar.LocalSGD(SGD(rate), period, outer=ringar.SlowMo(0.5)),
    "diloco": lambda rate, period: ringar.DiLoCo(keras.optimizers.AdamW(rate / 100), period),
    "easgd": lambda rate, period: ringar.EASGD(SGD(rate), period),
}
#: Those with a parameter server, and what its shards do with pushes that come late.
SERVED = {
    "downpour": ringar.asynchronous.Asynchronous(),
    "bounded": ringar.StaleSynchronous(4),
}


def main() -> None:
    """Train by each method, and print the nets' accuracy."""
    options = parse()
    ringar.init()
    train, test = load()
    rows = []
    for name in options.methods:
        keras.utils.set_random_seed(options.seed)
        model = make_model()
        with contextlib.ExitStack() as stack:
            if name in TOGETHER:
                optimizer = TOGETHER[name](options.learning_rate, options.period)
                fit(model, optimizer, train, options)
            else:
                server = stack.enter_context(
                    ringar.ParameterServer(
                        model, SGD(options.learning_rate / ringar.size()), control=SERVED[name]
                    )
                )
                local = SGD(options.learning_rate)
                fit(model, ringar.Downpour(local, server, n_push=2, n_fetch=2), train, options)
            rows.append((name, accuracy(model, test)))
    if ringar.rank() == 0:
        print_table(rows)


def fit(model: keras.Model, optimizer: Any, train: Images, options: argparse.Namespace) -> None:
    """Train on this rank's share of the images."""
    x, y = ringar.data.shard(train)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callbacks = [ringar.callbacks.Distributed()]
    model.fit(x, y, options.batch_size, options.epochs, verbose=0, callbacks=callbacks)


def accuracy(model: keras.Model, test: Images) -> float:
    """Return the part of the test images that are classified rightly."""
    classes = np.argmax(model(test[0]), axis=1)
    return float(np.mean(classes == test[1]))


def make_model() -> keras.Model:
    """Return a net with one hidden layer, which predicts logits of 10 classes."""
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)]
    )


def load() -> tuple[Images, Images]:
    """Return 1,000 images to train on, float32 [n, 64], and their classes; and 797 for tests."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype("float32"), y[order]
    return (x[:1000], y[:1000]), (x[1000:], y[1000:])


def print_table(rows: list[tuple[str, float]]) -> None:
    """Print the accuracy of each method."""
    print("| method    | accuracy |")
    print("|:----------|---------:|")
    for name, right in rows:
        print(f"| {name:9} | {right:8.2%} |")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    methods = [*TOGETHER, *SERVED]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", default=",".join(methods), help="of %(default)s")
    parser.add_argument("--period", type=int, default=8, help="steps between exchanges")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=10, help="images per rank and step")
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.methods = options.methods.split(",")
    if unknown_names := sorted(set(options.methods) - set(methods)):
        parser.error(
            f"--methods: unknown {', '.join(unknown_names)}; known are {', '.join(methods)}"
        )
    return options


if __name__ == "__main__":
    main()
