"""Under mixed_float16 an overflow on one rank is an overflow on all, and hangs nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.keras import common
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

SGD = keras.optimizers.SGD


# Who puts the loss scale there: Keras, in compile, or the user, inside or outside.
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "compile": lambda: ringar.DistributedOptimizer(SGD(0.1)),
    "inside": lambda: ringar.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(SGD(0.1))),
    "outside": lambda: keras.optimizers.LossScaleOptimizer(ringar.DistributedOptimizer(SGD(0.1))),
}
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "jit": {"jit_compile": True},
    "eager": {"run_eagerly": True},
}


@pytest.mark.usefixtures("mixed_float16")
@pytest.mark.parametrize(
    ("optimizer", "mode"),
    [
        fast_if(
            mode == "plain" or (optimizer, mode) in (("inside", "jit"), ("outside", "eager")),
            optimizer,
            mode,
        )
        for optimizer in OPTIMIZERS
        for mode in MODES
    ],
)
def test_overflow_on_one_rank_skips_the_step_on_all(
    optimizer: str, mode: str, rank: int, size: int, exchange: Callable[[Any], Any]
) -> None:
    model = common.dense_model(seed=0)
    model.compile(OPTIMIZERS[optimizer](), "mse", **MODES[mode])
    x, y = common.regression(8)
    overflowing = np.full_like(y, 1e30) if rank == size - 1 else y

    model.fit(tf.data.Dataset.from_tensors((x, y)), verbose=0)
    before = common.values(model)
    model.fit(tf.data.Dataset.from_tensors((x, overflowing)), verbose=0)
    assert common.largest_difference(common.values(model), before) == 0.0
    assert common.number(model.optimizer.dynamic_scale) == 2.0**14
    assert common.number(model.optimizer.inner_optimizer.iterations) == 1

    model.fit(tf.data.Dataset.from_tensors((x, y)), verbose=0)
    assert common.largest_difference(common.values(model), before) > 0.0
    assert common.number(model.optimizer.inner_optimizer.iterations) == 2
    assert len(set(exchange(common.digest(model)))) == 1


def test_policy_of_the_model_alone_is_enough(rank: int, size: int) -> None:
    keras.config.set_dtype_policy("mixed_float16")
    model = common.dense_model()
    keras.config.set_dtype_policy("float32")
    model.compile(ringar.DistributedOptimizer(SGD(0.1)), "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    x, y = common.regression(8)
    overflowing = np.full_like(y, 1e30) if rank == size - 1 else y
    model.fit(tf.data.Dataset.from_tensors((x, overflowing)), verbose=0)
    assert common.number(model.optimizer.dynamic_scale) == 2.0**14


@pytest.mark.usefixtures("mixed_float16")
def test_no_loss_scale_where_it_is_not_wanted() -> None:
    model = common.dense_model()
    model.compile(ringar.DistributedOptimizer(SGD(0.1)), "mse", auto_scale_loss=False)
    assert not isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


@pytest.mark.usefixtures("mixed_float16")
def test_loss_scale_without_ringar_is_as_before() -> None:
    ringar.DistributedOptimizer(SGD(0.1))  # teaches LossScaleOptimizer to reduce first
    model = common.dense_model()
    model.compile(SGD(0.1), "mse")
    before = common.values(model)
    model.fit(*common.regression(8), batch_size=8, verbose=0)
    assert common.largest_difference(common.values(model), before) > 0.0
