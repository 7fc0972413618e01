"""N ranks with the global batch split evenly do what one process does with the whole batch.

Every rank starts from other weights, so that the broadcast at the start is part of what is tested.
The one process is rank 0, training with plain Keras before the others join it, and with slices of
equal rows added in the gradients of embeddings.

In float16 and bfloat16 a gradient is rounded when it is summed over the batch, to 11 or 8 bits, and
otherwise for the whole batch than for its parts. With the whole batch these two are therefore
compared at a learning rate at which that rounding stays below 1e-5 while a step that is wrong does
not, and at a normal one with the one process that does the same arithmetic: the mean of the
gradients of the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests import one_process
from tests.keras import common
from tests.plugin import fast_if

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(1, 2, 4)]

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Case:
    """An optimizer, with a model and a dtype policy to try it on."""

    optimizer: Callable[[], Any]
    model: Callable[..., keras.Model] = common.dense_model
    data: Callable[[], tuple[np.ndarray, np.ndarray]] = common.regression
    policy: str = "float32"


SGD = keras.optimizers.SGD
CASES = {
    "sgd_momentum": Case(lambda: SGD(0.1, momentum=0.9)),
    "adam": Case(lambda: keras.optimizers.Adam(0.01)),
    "adamw": Case(lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1)),
    "global_clipnorm": Case(lambda: SGD(0.1, momentum=0.9, global_clipnorm=0.1)),
    "accumulation": Case(lambda: SGD(0.1, momentum=0.9, gradient_accumulation_steps=2)),
    "ema": Case(lambda: SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=5)),
    "embedding": Case(lambda: SGD(0.1, momentum=0.9), common.embedding_model, common.tokens),
    "embedding_adam": Case(
        lambda: keras.optimizers.Adam(0.01), common.embedding_model, common.tokens
    ),
    "mixed_float16": Case(lambda: SGD(0.0005, momentum=0.9), policy="mixed_float16"),
    "mixed_bfloat16": Case(lambda: SGD(0.0001, momentum=0.9), policy="mixed_bfloat16"),
}


@pytest.mark.parametrize(
    ("name", "jit"),
    [fast_if(not jit or name == "embedding", name, jit) for name in CASES for jit in (False, True)],
)
def test_training_equals_one_process(
    name: str, jit: bool, rank: int, policy: Callable[[str], None], exchange: Callable[[Any], Any]
) -> None:
    case = CASES[name]
    policy(case.policy)
    start, expected = None, None
    if rank == 0:
        model = case.model(seed=0)
        start = common.values(model)
        train(model, common.summed(case.optimizer()), common.batches(case.data()), jit)
        expected = common.values(model)

    model = case.model(seed=rank)
    train_distributed(model, case.optimizer(), common.own_batches(case.data()), jit)

    assert len(set(exchange(common.digest(model)))) == 1, "the ranks hold other weights"
    if start is not None and expected is not None:
        moved = common.largest_difference(start, expected)
        assert moved > 100 * TOLERANCE, "the comparison would not see a wrong step"
        assert common.largest_difference(common.values(model), expected) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "jit"),
    [
        fast_if(jit == (name == "mixed_float16"), name, jit)
        for name in ("mixed_float16", "mixed_bfloat16")
        for jit in (False, True)
    ],
)
def test_mixed_precision_equals_one_process_in_parts(
    name: str, jit: bool, rank: int, size: int, policy: Callable[[str], None]
) -> None:
    policy(name)
    data = common.regression()
    expected = None
    if rank == 0:
        model = InParts(size)
        model.set_weights(common.dense_model(seed=0).get_weights())
        train(model, SGD(0.1, momentum=0.9), common.batches(data), jit)
        expected = common.values(model)

    model = common.dense_model(seed=rank)
    train_distributed(model, SGD(0.1, momentum=0.9), common.own_batches(data), jit)

    if expected is not None:
        assert common.largest_difference(common.values(model), expected) < TOLERANCE


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "jit"])
def test_two_runs_with_the_same_seed_are_bit_identical(jit: bool, rank: int) -> None:
    digests = []
    for _ in range(2):
        model = common.dense_model(seed=3)
        data = common.own_batches(common.regression())
        train_distributed(model, keras.optimizers.Adam(0.01), data, jit)
        digests.append(common.digest(model))
    assert digests[0] == digests[1]


def test_steps_run_eagerly_equal_one_process(rank: int) -> None:
    data = common.regression(5 * common.GLOBAL_BATCH)
    single = common.dense_model(seed=0)
    single.compile(SGD(0.1, momentum=0.9), "mse")
    one_process.fit(single, common.batches(data))

    model = common.dense_model(seed=rank)
    optimizer = ringar.DistributedOptimizer(SGD(0.1, momentum=0.9))
    model.compile(optimizer, "mse", run_eagerly=True)
    model.fit(common.own_batches(data), verbose=0, callbacks=[ringar.callbacks.Distributed()])
    assert common.largest_difference(common.values(model), common.values(single)) < TOLERANCE


def train(model: keras.Model, optimizer: Any, data: tf.data.Dataset, jit: bool = False) -> None:
    model.compile(optimizer, "mse", jit_compile=jit)
    model.fit(data, verbose=0)


def train_distributed(
    model: keras.Model, optimizer: Any, data: tf.data.Dataset, jit: bool = False
) -> None:
    model.compile(ringar.DistributedOptimizer(optimizer), "mse", jit_compile=jit)
    model.fit(data, verbose=0, callbacks=[ringar.callbacks.Distributed()])


class InParts(keras.Sequential):
    """The dense model in one process, trained with the mean of the gradients of `parts` parts."""

    def __init__(self, parts: int) -> None:
        super().__init__(common.dense_model().layers)
        self.parts = parts

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        of_parts = [
            self._gradients(x[i :: self.parts], y[i :: self.parts]) for i in range(self.parts)
        ]
        gradients = [tf.add_n(list(parts)) / self.parts for parts in zip(*of_parts, strict=True)]
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"of_part": self.parts}

    def _gradients(self, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            loss = self.optimizer.scale_loss(loss)
        return list(tape.gradient(loss, self.trainable_variables))
