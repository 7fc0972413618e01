"""A small model trained on images of digits: what compression may not do harm to.

As a script it trains once per compression, over the algorithm that it is given, and rank 0 prints
the accuracies and how far the weights of the first steps are from those without compression.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import keras
import numpy as np

import ringar
from tests.keras import common


def train(epochs: int, **options: Any) -> tuple[keras.Model, float]:
    """A model of 64 units and its accuracy on 360 images that it has not seen.

    Args:
        epochs: times that it sees the 1437 others, in batches of 32 over all ranks.
        **options: of `ringar.DistributedOptimizer`.
    """
    from sklearn.datasets import load_digits  # takes a second, which few tests need

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = (digits.data / 16).astype("float32")[order], digits.target[order]
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    sgd = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer = ringar.DistributedOptimizer(sgd, **options)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    data = common.own_batches((x[:1437], y[:1437]), batch=32)
    # Its checks are that all ranks end with the same weights, bit by bit.
    model.fit(data, epochs=epochs, verbose=0, callbacks=[ringar.callbacks.Distributed()])
    return model, float(model.evaluate(x[1437:], y[1437:], verbose=0)[1])


def main() -> None:
    (algorithm,) = sys.argv[1:]
    ringar.init(deadline=30)
    results = {}
    exact = common.values(train(1, algorithm=algorithm)[0])
    for name in ("none", "fp16", "bf16", "powersgd"):
        compression = getattr(ringar.Compression, name)
        options = {
            "compression": compression(rank=1) if name == "powersgd" else compression,
            "algorithm": algorithm,
        }
        moved = common.largest_difference(common.values(train(1, **options)[0]), exact)
        results[name] = {"accuracy": train(5, **options)[1], "moved": moved}
    if ringar.rank() == 0:
        print("results", json.dumps(results))
    ringar.shutdown()


if __name__ == "__main__":
    main()
