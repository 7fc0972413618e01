"""Plain Keras models of many shapes, trained before ringar is imported and after its use.

A job runs this as a program, which prints the numbers of models with other bits.
"""

from __future__ import annotations

import collections
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

L = keras.layers
Pair = collections.namedtuple("Pair", ["first", "second"])

CONTAINERS: dict[str, Callable[[Any, Any], Any]] = {
    "list": lambda a, b: [a, b],
    "tuple": lambda a, b: (a, b),
    "namedtuple": Pair,
    "dict": lambda a, b: {"a": a, "b": b},
    "ordered dict": lambda a, b: collections.OrderedDict(a=a, b=b),
    "deque": lambda a, b: collections.deque([a, b]),
    "nested": lambda a, b: {"a": ([a], ()), "b": (Pair(b, None), [{}])},
}

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(12, 6)).astype("float32"), rng.normal(size=(12, 1)).astype("float32")
WORDS, CLASSES = rng.integers(0, 5, (12, 6)), rng.integers(0, 3, 12)


class Held(keras.Model):
    """A model that holds layers, a variable and optimizers in a container."""

    def __init__(self, hold: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.first, self.second = L.Dense(4, activation="tanh"), L.Dense(1)
        self.scale = self.add_weight(shape=(), initializer="ones")
        self.blocks, self.scales = hold(self.first, self.second), hold(self.scale, 3)
        self.optimizers = hold(keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.1))

    def call(self, x: Any) -> Any:
        return self.second(self.first(x)) * self.scale


def sequential(*hidden: Any, units: int = 1) -> keras.Model:
    return keras.Sequential([*hidden, L.Dense(units)])


def of_two_outputs() -> keras.Model:
    x = keras.Input((6,), name="x")
    hidden = L.Dropout(0.5)(L.Dense(4)(x))
    return keras.Model({"x": x}, {"a": L.Dense(1)(hidden), "b": L.Dense(3)(hidden)})


def rematerialized() -> keras.Model:
    with keras.RematScope(mode="full"):
        x = keras.Input((6,))
        return keras.Model(x, L.Dense(1)(L.Dense(4, activation="relu")(x)))


def optimizers(is_full: bool) -> Iterator[keras.optimizers.Optimizer]:
    names = "Adadelta Adafactor Adagrad Adam AdamW Adamax Ftrl Lamb Lion Muon Nadam RMSprop SGD"
    for name in names.split() if is_full else ["Adam"]:
        if kind := getattr(keras.optimizers, name, None):
            yield kind(0.05)
    yield keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_overwrite_frequency=2)
    accumulating = keras.optimizers.Adam(0.05, gradient_accumulation_steps=2, global_clipnorm=0.5)
    yield keras.optimizers.LossScaleOptimizer(accumulating)


Case = tuple[keras.Model, Any, Any, dict[str, Any], dict[str, Any]]


def cases(is_full: bool) -> Iterator[Case]:
    """Yield models, data, and arguments of `compile` and `fit`: of each kind some, or all."""
    eager = {"loss": "mse", "run_eagerly": True}
    containers = CONTAINERS if is_full else {name: CONTAINERS[name] for name in ("tuple", "nested")}
    holders = itertools.chain(containers.values(), itertools.repeat(CONTAINERS["namedtuple"]))
    for optimizer, hold in zip(optimizers(is_full), holders, strict=False):
        yield Held(hold), X, Y, {**eager, "optimizer": optimizer}, {}
    yield rematerialized(), X, Y, {"optimizer": "adam", **eager}, {}
    sparse = keras.losses.SparseCategoricalCrossentropy
    losses: list[Any] = [sparse(True, ignore_class=1)]
    losses += [sparse(True), sparse(True, reduction="sum")] if is_full else []
    for loss in losses:
        model = sequential(
            L.Embedding(5, 4, mask_zero=True),
            L.LSTM(3) if is_full else L.GlobalAveragePooling1D(),
            units=3,
        )
        compiled = {**eager, "optimizer": "sgd", "loss": loss, "metrics": ["accuracy"]}
        yield model, WORDS, CLASSES, compiled, {"sample_weight": Y[:, 0] ** 2}
    pair = {"a": lambda y, p: keras.ops.abs(y - p), "b": sparse(True)}
    compiled = {**eager, "optimizer": "sgd", "loss": pair, "loss_weights": {"a": 2.0, "b": 0.5}}
    targets = {"a": Y, "b": CLASSES}
    yield of_two_outputs(), {"x": X}, targets, compiled, {"validation_split": 0.25}
    normalized = sequential(L.Dense(4), L.BatchNormalization(), L.GaussianNoise(0.1))
    yield normalized, X, Y, {"optimizer": "sgd", **eager}, {}


def train(is_full: bool) -> list[bytes]:
    """Train every model, and return its losses and variables as bytes."""
    results = []
    keras.utils.set_random_seed(1)
    for number, (model, x, y, compiled, fitted) in enumerate(cases(is_full)):
        keras.utils.set_random_seed(number)
        model.compile(**compiled)
        history = model.fit(x, y, batch_size=5, verbose=0, **fitted).history
        values = [np.array(list(history.values())), *(v.numpy() for v in model.variables)]
        values += [v.numpy() for v in model.optimizer.variables]
        results.append(b"".join(value.tobytes() for value in values))
    return results


def use_ringar() -> None:
    """Train with all that overrides functions of Keras."""
    import ringar

    ringar.init()
    model = sequential(keras.Input((6,)))
    model.compile(ringar.DistributedOptimizer("adam", shard="weights"), "mse")
    model.fit(X, Y, verbose=0, callbacks=[ringar.callbacks.Distributed()])


def main(is_full: bool) -> None:
    """Train before the import of ringar, and after its use."""
    assert "ringar" not in sys.modules
    before = train(is_full)
    use_ringar()
    after = train(is_full)
    print([number for number, result in enumerate(before) if after[number] != result], len(before))


if __name__ == "__main__":
    main("every" in sys.argv)
