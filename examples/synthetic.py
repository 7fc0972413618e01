"""Handwritten digits by modules that do not wait for each other's gradients.

    ringarrun -np 2 python examples/synthetic.py
    ringarrun -np 2 python examples/synthetic.py --synthesizer zero
    ringarrun -np 2 python examples/synthetic.py --slow-rank

Each rank holds a part of a dense net. It updates its weights with a synthetic gradient, predicted
from its activations and the labels, and goes on to the next batch (Jaderberg et al. 2017). What
predicts learns from the gradient that comes back later: the true one, or with `--bp-lambda 0` one
that is itself built on a prediction. With `--synthesizer zero` lower modules get no gradient, with
`--synthesizer true` they wait for the true one. With `--slow-rank` the last rank sleeps for a
second in each epoch; rank 0 prints how far ahead of it the others went.

The digits are scikit-learn's: 1,797 images of 8 x 8.

Needs scikit-learn: `pip install --editable '.[tensorflow,examples]'` in the checkout.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import keras
import numpy as np

import ringar

LAYERS, UNITS, CLASSES = 4, 96, 10

Images = tuple[np.ndarray, np.ndarray]


class Sleep(keras.callbacks.Callback):
    """Let the last rank sleep once in each epoch, and see how far the others are ahead then."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Sleep."""
        if batch == 10 and ringar.rank() == ringar.size() - 1:
            time.sleep(1.0)
        self.ahead = max(self.ahead, self.model.in_flight)


def main() -> None:
    """Train, then print the accuracy."""
    options = parse()
    ringar.init()
    keras.utils.set_random_seed(options.seed)
    train, test = load()
    model = ringar.parallel.Pipelined(
        make_model(),
        schedule="synthetic",
        cuts=cuts(ringar.size()),
        synthesizer=None if options.synthesizer == "default" else options.synthesizer,
        conditioned=True,
        bp_lambda=options.bp_lambda,
    )
    steps = options.epochs * math.ceil(len(train[0]) / options.batch_size)
    rate = keras.optimizers.schedules.CosineDecay(1e-3, steps)  # remaining errors fade out
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    sleep = Sleep()
    callbacks = [sleep] if options.slow_rank else []
    begin = time.monotonic()
    model.fit(*train, options.batch_size, options.epochs, callbacks=callbacks, verbose=2)
    seconds = time.monotonic() - begin
    result = model.evaluate(*test, verbose=0, return_dict=True)
    if ringar.rank() == 0:
        ahead = f", up to {sleep.ahead} batches ahead" if options.slow_rank else ""
        print(
            f"{ringar.size()} modules, {options.synthesizer} synthesizers: "
            f"accuracy {100 * result['accuracy']:.2f}% after {seconds:.1f} s{ahead}"
        )


def make_model() -> keras.Model:
    """Return a dense net."""
    hidden = [
        keras.layers.Dense(UNITS, activation="relu", name=f"hidden{i}") for i in range(LAYERS)
    ]
    logits = keras.layers.Dense(CLASSES, name="logits")
    return keras.Sequential([keras.Input((64,)), *hidden, logits])


def cuts(modules: int) -> list[str]:
    """Return the layers after which the net is cut, spread over its hidden layers."""
    if modules > LAYERS + 1:
        raise SystemExit(f"expected at most {LAYERS + 1} ranks, received {modules}")
    return [f"hidden{(i + 1) * (LAYERS + 1) // modules - 1}" for i in range(modules - 1)]


def load() -> tuple[Images, Images]:
    """Return train and test data: images, float32 [n, 64], and classes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = (digits.data / 16).astype("float32")[order], digits.target[order]
    return (x[:1437], y[:1437]), (x[1437:], y[1437:])


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--synthesizer", choices=["default", "true", "zero"], default="default")
    parser.add_argument("--bp-lambda", type=float, default=1.0, help="0 to 1 (default 1)")
    parser.add_argument("--slow-rank", action="store_true", help="let the last rank sleep")
    return parser.parse_args()


if __name__ == "__main__":
    main()
