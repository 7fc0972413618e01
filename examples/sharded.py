"""Recognize digits with a net whose optimizer's slots are shared out over the ranks.

    ringarrun -np 2 python examples/sharded.py
    ringarrun -np 4 python examples/sharded.py --width 4096 --shard none
    ringarrun -np 4 python examples/sharded.py --width 4096 --layers 8 --limit-gb 2 --shard weights

The net is far too wide for its 1,797 images of 8 x 8 (scikit-learn brings them): with Adam, its
slots take two thirds of what weights and slots take together. Each rank keeps those of its slices
only, and all ranks have the same weights after each step. The table tells what a rank needs for
each stage and number of ranks, and how much memory this rank's slots have taken.

The third command trains 118 million parameters, 1.9 GB with Adam, on ranks that may take 2 GB each,
gradients and activations included: with `--shard none` they run out of memory.

Needs scikit-learn: `pip install --editable '.[tensorflow,examples]'` in the checkout.
"""

from __future__ import annotations

import argparse
import resource
from contextlib import nullcontext

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
    if options.limit_gb:
        limit = int(options.limit_gb * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    sharded = ringar.sharded_weights() if options.shard == "weights" else nullcontext()
    with sharded:  # whole weights are there one after the other only
        model = make_model(options.width, options.layers)
    if ringar.rank() == 0:
        # Without a batch it measures nothing, and needs no other rank.
        batch = None if options.shard == "weights" else train[0][: options.batch_size]
        print(ringar.memory_report(model, "adam", batch=batch))
    x, y = ringar.data.shard(train)
    shard = None if options.shard == "none" else options.shard
    optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(1e-3), shard=shard)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [ringar.callbacks.Distributed()]
    model.fit(x, y, options.batch_size, options.epochs, callbacks=callbacks)
    if options.save:
        model.save(options.save)  # on every rank: the first writes, the others give it their slots
    _, accuracy = model.evaluate(*test, verbose=0)  # on every rank: some have parts of weights
    if ringar.rank() == 0:
        print_table(options, optimizer, accuracy)


def make_model(width: int, hidden: int) -> keras.Model:
    """Return a net of dense layers, some of them hidden."""
    stack = [keras.layers.Dense(width, activation="relu") for _ in range(hidden)]
    outputs = keras.layers.Dense(10, activation="softmax")
    return keras.Sequential([keras.Input((64,)), *stack, outputs])


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
    stages = ("none", "optimizer", "gradients", "weights")
    parser.add_argument("--shard", choices=stages, default="gradients")
    parser.add_argument("--width", type=int, default=1024, help="units of hidden layers")
    parser.add_argument("--layers", type=int, default=2, help="hidden layers")
    parser.add_argument("--limit-gb", type=float, help="the most memory of a rank (RLIMIT_DATA)")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--save", help="where to save the model, a .keras file")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
