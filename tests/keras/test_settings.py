"""Settings that differ between ranks: an error on each of them before the first step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.errors import MismatchError
from ringar.keras import description
from tests.keras import common

pytestmark = [pytest.mark.ranks(2, 3), pytest.mark.usefixtures("initialized")]
Make = Callable[..., Any]
SGD, Adam, AdamW = (getattr(keras.optimizers, name) for name in ("SGD", "Adam", "AdamW"))
LossScale = keras.optimizers.LossScaleOptimizer
MeanSquaredError, Huber = keras.losses.MeanSquaredError, keras.losses.Huber
Distributed, LocalSGD, DiLoCo = ringar.DistributedOptimizer, ringar.LocalSGD, ringar.DiLoCo
BF16 = ringar.Compression.bf16


def without_decay(of: str) -> keras.optimizers.Optimizer:
    """AdamW that leaves out some weights."""
    optimizer = AdamW(weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=[of])
    return optimizer


def scaled(initial_scale: float) -> keras.optimizers.Optimizer:
    return Distributed(LossScale(SGD(), initial_scale))


def nesterov(rate: float) -> keras.optimizers.Optimizer:
    return SGD(rate, momentum=0.9, nesterov=True)


def freeze(model: keras.Model) -> None:
    model.layers[0].trainable = False


def use_bfloat16(model: keras.Model) -> None:
    model.layers[0].dtype_policy = keras.DTypePolicy("mixed_bfloat16")


def powersgd(rank: int) -> Any:
    return ringar.Compression.powersgd(rank=rank)


def decaying(steps: int) -> Any:
    return keras.optimizers.schedules.CosineDecay(0.1, steps)


#: How the path of a setting ends, and optimizers of rank 0 and of the others that differ in it.
UPDATES: list[tuple[str, Make, Make]] = [
    ("class", Adam, SGD),
    ("weight_decay", lambda: AdamW(weight_decay=0.0), lambda: AdamW(weight_decay=0.5)),
    ("global_clipnorm", SGD, lambda: SGD(global_clipnorm=1.0)),
    ("exclude_from_weight_decay", lambda: without_decay("bias"), lambda: without_decay("kernel")),
]
EXCHANGES: list[tuple[str, Make, Make]] = [
    ("function", lambda: Distributed(SGD()), lambda: LocalSGD(SGD())),
    ("shard", lambda: Distributed(SGD()), lambda: Distributed(SGD(), shard="gradients")),
    ("op", lambda: Distributed(SGD(), op=ringar.Sum), lambda: Distributed(SGD())),
    ("compression", lambda: Distributed(SGD(), compression=BF16), lambda: Distributed(SGD())),
    (
        "compression.rank",
        lambda: Distributed(SGD(), compression=powersgd(1)),
        lambda: Distributed(SGD(), compression=powersgd(2)),
    ),
    ("period", lambda: LocalSGD(SGD(), 5), lambda: LocalSGD(SGD(), 3)),
    ("period", lambda: LocalSGD(SGD(), lambda n: 5), lambda: LocalSGD(SGD(), lambda n: 3)),
    (
        "average",
        lambda: LocalSGD(SGD(), average="parameters"),
        lambda: LocalSGD(SGD(), average="parameters+slots"),
    ),
    ("outer.learning_rate", lambda: DiLoCo(SGD()), lambda: DiLoCo(SGD(), outer=nesterov(0.5))),
    (
        "outer.beta",
        lambda: LocalSGD(SGD(), outer=ringar.SlowMo(0.5)),
        lambda: LocalSGD(SGD(), outer=ringar.SlowMo(0.6)),
    ),
    ("beta", lambda: ringar.EASGD(SGD(), beta=0.8), lambda: ringar.EASGD(SGD())),
    ("atomic", lambda: ringar.Hogwild(SGD(), atomic=False), lambda: ringar.Hogwild(SGD())),
]
OPTIMIZERS: list[tuple[str, Make, Make]] = [
    *((f"exchange.{name}", first, other) for name, first, other in EXCHANGES),
    ("optimizer.initial_scale", lambda: scaled(2.0), lambda: scaled(4.0)),
    ("exchange.function", lambda: scaled(2.0), lambda: LocalSGD(LossScale(SGD()))),
    ("optimizer.learning_rate", lambda: Distributed(SGD(decaying(9))), lambda: Distributed(SGD())),
]
#: Arguments of `compile`.
COMPILED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("loss", {"loss": "mse"}, {"loss": "mae"}),
    ("loss.reduction", {"loss": MeanSquaredError()}, {"loss": MeanSquaredError("sum")}),
    ("loss.delta", {"loss": Huber(0.5)}, {"loss": Huber(1.5)}),
    ("loss_weights", {"loss_weights": [0.5]}, {"loss_weights": [2.0]}),
]


def refused(
    path: str, compile: dict[str, Any], prepare: Make = lambda *model: None, **fit: Any
) -> None:
    """Expect an error of `fit` that begins with the path."""
    model = common.dense_model()
    prepare(model)
    model.compile(**{"loss": "mse"} | compile)
    callbacks = [ringar.callbacks.Distributed()]
    with pytest.raises(MismatchError) as caught:
        model.fit(*common.regression(12), verbose=0, callbacks=callbacks, **fit)
    start = f"ringar.callbacks.Distributed: expected the same {path} on every rank; received"
    text = str(caught.value)
    assert text.startswith(f"rank {ringar.rank()} | {start}"), (path, text)
    assert "(rank 0)" in text, text
    assert "0x" not in text, text


def test_a_setting_that_differs(rank: int) -> None:
    """In `fit`, before a step is traced."""
    number = min(rank, 1)
    for name, *makes in UPDATES:
        for shard in ("optimizer", "weights"):
            refused(f"optimizer.{name}", {"optimizer": Distributed(makes[number](), shard=shard)})
    for path, *makes in OPTIMIZERS:
        refused(path, {"optimizer": makes[number]()})
    for path, *settings in COMPILED:
        refused(path, {"optimizer": Distributed(SGD()), **settings[number]})
    refused("initial epoch", {"optimizer": Distributed(SGD())}, initial_epoch=rank)
    for path, prepare in (("weight 0", freeze), ("dtype_policy", use_bfloat16)):
        prepare = prepare if rank == 0 else lambda model: None
        refused(path, {"optimizer": Distributed(SGD())}, prepare)


def test_a_setting_that_differs_in_a_loop(rank: int) -> None:
    x, y = common.regression(12)
    makes: list[tuple[str, Make, Make]] = [
        ("exchange.function", lambda: Distributed(SGD()), lambda: LocalSGD(SGD())),
        ("exchange.period", lambda: LocalSGD(SGD(), 5), lambda: LocalSGD(SGD(), 3)),
        ("optimizer.class", lambda: Distributed(Adam()), lambda: Distributed(SGD())),
    ]
    for path, first, other in makes:
        model = common.dense_model()
        model.compile((first if rank == 0 else other)(), "mse")
        with pytest.raises(MismatchError, match=f"expected the same {path} on every rank"):
            model.train_on_batch(x, y)
    model = common.dense_model()
    model.compile(LocalSGD(SGD(), 4), "mse")
    model.train_on_batch(x, y)
    model.compile(LocalSGD(SGD(), 5 + rank), "mse")  # variables whose first step was before
    with pytest.raises(MismatchError, match="the same exchange.period on every rank"):
        model.train_on_batch(x, y)
    model = common.dense_model()
    op = ringar.Sum if rank == 0 else ringar.Average
    with ringar.DistributedGradientTape(tf.GradientTape(), op=op) as tape:
        loss = keras.ops.mean((model(x) - y) ** 2)
    refusal = r"ringar.DistributedGradientTape: expected the same exchange.op on .* SUM \(rank 0\)"
    with pytest.raises(MismatchError, match=refusal):
        tape.gradient(loss, model.trainable_variables)


def test_what_may_differ(rank: int) -> None:
    """Rates, names, seeds, the place of a dropout seed; a loss by its name or as an object."""
    if rank > 0:
        keras.layers.Dense(1)  # numbers of names differ from here on
    model = common.dense_model()
    rate = 0.1 * (rank + 1)
    model.compile(LocalSGD(Adam(rate, name=f"adam_{rank}"), lambda n: 2 + n), loss_of(rank))
    model.fit(*common.regression(12), verbose=0, callbacks=[ringar.callbacks.Distributed()])


def loss_of(rank: int) -> Any:
    return "mse" if rank == 0 else keras.losses.get("mean_squared_error")


def test_descriptions_are_plain_and_stable() -> None:
    """No object of Python is in them whose text has an address."""

    class Odd(keras.optimizers.SGD):
        def get_config(self) -> dict[str, Any]:
            raise NotImplementedError

    class Callable_:
        def __call__(self, y: Any, p: Any) -> Any:
            return y - p

    functions = [lambda y, p: y - p, tf.function(lambda y, p: y - p), Callable_()]
    values = [{"a": np.arange(3), "b": tf.constant(2.0), "c": {1, 2}}, keras.Variable([1.0])]
    for value in [*functions, *values, ringar.Compression.powersgd(rank=2), np.float32(2)]:
        text = str(description.plain(value))
        assert "0x" not in text, text
        assert "object" not in text, text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizers = [Odd(0.1)]
        if hasattr(keras.optimizers, "MultiOptimizer"):
            optimizers.append(keras.optimizers.MultiOptimizer(lambda variable: SGD()))
        texts = [str(description.optimizer(optimizer)) for optimizer in optimizers]
    assert all("0x" not in text and "object" not in text for text in texts), texts
    codes = [description.plain(f) for f in (lambda n: 5, lambda n: 5, lambda n: 3)]
    assert codes[0] == codes[1] != codes[2]


def test_batches_with_other_parts(rank: int) -> None:
    """A weight for each example on one rank only, also by `class_weight`."""
    x, _ = common.regression(12)
    y = np.arange(12) % 2
    for first in ({"sample_weight": np.ones(12)}, {"class_weight": {0: 1.0, 1: 2.0}}):
        model = common.dense_model()
        model.compile(Distributed(SGD()), "mse")
        callbacks = [ringar.callbacks.Distributed()]
        arguments: dict[str, Any] = first if rank == 0 else {}
        with pytest.raises(MismatchError, match="the same parts of a batch on every rank"):
            model.fit(x, y, verbose=0, callbacks=callbacks, **arguments)
