"""Two nets that teach each other to read handwritten digits, and two that do not.

    ringarrun -np 2 python examples/codistillation.py
    ringarrun -np 4 python examples/codistillation.py --groups 2 --distance mse

Codistillation comes from Anil et al., "Large scale distributed neural network training through
online distillation" (2018). Groups of ranks train copies of a net on different images. Each net
also learns to predict what the nets of the other groups predict, from copies of them that may be
many steps old. The table compares them with groups that train independently, from the same weights
and on the same images: how many test images the nets classify rightly, and of how many images the
nets of two groups say different things.

Needs scikit-learn: `pip install --editable '.[tensorflow,examples]'` in the checkout.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np

import ringar

Images = tuple[np.ndarray, np.ndarray]


def main() -> None:
    """Train with codistillation and without, then print what the nets predict."""
    options = parse()
    ringar.init()
    train, test = load(options.images)
    rows = []
    for name, alpha in (("independent", 0.0), ("codistilled", options.alpha)):
        predictions = predictions_of_groups(train, test[0], alpha, options)
        rows.append((name, accuracy(predictions, test[1]), disagreement(predictions)))
    if ringar.rank() == 0:
        print_table(rows)


def predictions_of_groups(
    train: Images, images: np.ndarray, alpha: float, options: argparse.Namespace
) -> list[np.ndarray]:
    """Train, and return the classes that the net of each group predicts, on every rank."""
    # Groups begin with different weights; ranks of a group get those of its first rank.
    keras.utils.set_random_seed(options.seed + ringar.rank())
    model = ringar.Codistillation(
        make_model(),
        options.groups,
        alpha=alpha,
        distance=options.distance,
        burn_in=options.burn_in,
        exchange_period=options.exchange_period,
        from_logits=True,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(options.learning_rate), loss, metrics=["accuracy"])
    x, y = ringar.data.shard(train)
    callbacks = [ringar.callbacks.Distributed()]
    model.fit(x, y, options.batch_size, options.epochs, verbose=0, callbacks=callbacks)
    predictions = np.argmax(model.predict(images, verbose=0), axis=1)
    of_ranks = ringar.allgather_object(predictions)
    return of_ranks[:: ringar.size() // options.groups]


def make_model() -> keras.Model:
    """Return a net with one hidden layer, which predicts logits of 10 classes."""
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)]
    )


def load(images: int) -> tuple[Images, Images]:
    """Return `images` images to train on, float32 [n, 64], and their classes; and 797 for tests."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype("float32"), y[order]
    return (x[:images], y[:images]), (x[1000:], y[1000:])


def accuracy(predictions: list[np.ndarray], classes: np.ndarray) -> float:
    """Return the part of the images that are classified rightly, as a mean over groups."""
    return float(np.mean([group == classes for group in predictions]))


def disagreement(predictions: list[np.ndarray]) -> float:
    """Return the part of the images on which two groups differ, as a mean over pairs."""
    pairs = [np.mean(a != b) for i, a in enumerate(predictions) for b in predictions[:i]]
    return float(np.mean(pairs)) if pairs else 0.0


def print_table(rows: list[tuple[str, float, float]]) -> None:
    """Print accuracy and disagreement of each way of training."""
    print("| groups      | accuracy | disagreement |")
    print("|:------------|---------:|-------------:|")
    for name, right, disagreement in rows:
        print(f"| {name:11} | {right:8.2%} | {disagreement:12.2%} |")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=2, help="a divisor of the number of ranks")
    parser.add_argument("--distance", choices=["kl", "mse"], default="kl")
    parser.add_argument("--alpha", type=float, default=1.0, help="the weight of the distance")
    parser.add_argument("--burn-in", type=int, default=20, help="steps without a distance")
    parser.add_argument("--exchange-period", type=int, default=5, help="steps between exchanges")
    parser.add_argument("--images", type=int, default=300, help="of all ranks, up to 1,000")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
