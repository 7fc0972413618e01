"""Recognize digits with a net whose optimizer's slots are shared out over the ranks.

    ringarrun -np 2 python examples/sharded.py
    ringarrun -np 4 python examples/sharded.py --width 4096 --shard none

The net is far too wide for its 1,797 images of 8 x 8 (scikit-learn brings them): with Adam, its
slots take two thirds of what weights and slots take together. Each rank keeps those of its slices
only, and all ranks have the same weights after each step. The table tells what a rank needs for
each stage and number of ranks, and how much memory this rank's slots have taken.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np

import ringar

Images = tuple[np.ndarray, np.ndarray]


def main() -> None:
    """Print what training needs, train, save, then print accuracy and the bytes of slots."""
    options = parse()
    ringar.init()
    keras.utils.set_random_seed(options.seed)
    train, test = load()
    model = make_model(options.width)
    if ringar.rank() == 0:
        print(ringar.memory_report(model, "adam", batch=train[0][: options.batch_size]))
    x, y = ringar.data.shard(train)
    shard = None if options.shard == "none" else options.shard
    optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(1e-3), shard=shard)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [ringar.callbacks.Distributed()]
    model.fit(x, y, options.batch_size, options.epochs, callbacks=callbacks)
    if options.save:
        model.save(options.save)  # on every rank: the first writes, the others give it their slots
    if ringar.rank() == 0:
        _, accuracy = model.evaluate(*test, verbose=0)
        print_table(options, optimizer, accuracy)


def make_model(width: int) -> keras.Model:
    """Return a net of three dense layers."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(width, activation="relu"),
            layers.Dense(width, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )


def load() -> tuple[Images, Images]:
    """Return train and test data: pixels from 0 to 1, float32 [n, 64], and classes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = (digits.data / 16).astype("float32")
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], digits.target[order]
    return (x[:1437], y[:1437]), (x[1437:], y[1437:])


def print_table(
    options: argparse.Namespace, optimizer: keras.optimizers.Optimizer, accuracy: float
) -> None:
    """Print the stage, the bytes of this rank's slots and the accuracy."""
    slots = sum(4 * int(np.prod(variable.shape)) for variable in optimizer.variables)
    print()
    print("| ranks | shard     | slots of a rank | accuracy |")
    print("|------:|-----------|----------------:|---------:|")
    print(f"| {ringar.size():5} | {options.shard:9} | {slots / 1e6:12.1f} MB | {accuracy:8.2%} |")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shard", choices=("none", "optimizer", "gradients"), default="gradients")
    parser.add_argument("--width", type=int, default=1024, help="units of the two hidden layers")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--save", help="where to save the model, a .keras file")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
