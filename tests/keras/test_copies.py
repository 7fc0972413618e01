"""Copies of a distributed optimizer are distributed, or plain and refused when training begins."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.keras.optimizer import is_distributed
from tests.keras import common

pytestmark = pytest.mark.usefixtures("initialized")

SGD = keras.optimizers.SGD
COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "from_config": lambda optimizer: optimizer.from_config(optimizer.get_config()),
}
PLAIN: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
    "class": lambda optimizer: type(optimizer)(0.5),
    "config of the class": lambda optimizer: type(optimizer).from_config(optimizer.get_config()),
    "Keras": lambda o: keras.optimizers.deserialize(keras.optimizers.serialize(o)),
}


@pytest.mark.parametrize("way", COPIES)
def test_copies_reduce_on_their_own(way: str, rank: int, size: int) -> None:
    settings = ringar.Compression.powersgd(rank=1)
    plain = SGD(1.0, name="one")
    optimizer = ringar.DistributedOptimizer(plain, op=ringar.Sum, compression=settings)
    variables = [keras.Variable(np.zeros(shape, "float32")) for shape in [(12, 10), (3,)]]
    gradients = [tf.fill(v.shape, rank + 1.0) for v in variables]
    optimizer.apply(gradients, variables)
    twin = COPIES[way](optimizer)
    assert twin is not optimizer
    assert twin.get_config() == optimizer.get_config()
    assert type(twin) is type(optimizer)

    twin.apply(gradients, variables)
    total = -2.0 * sum(r + 1 for r in range(size))
    np.testing.assert_allclose(variables[1], np.full(3, total))
    states = [member._exchange.reduction.low_rank._states for member in (optimizer, twin)]
    for state, twin_state in zip(states[0].values(), states[1].values(), strict=True):
        assert state.q is not twin_state.q


@pytest.mark.parametrize("way", PLAIN)
@pytest.mark.ranks(1)
def test_plain_copies(way: str) -> None:
    optimizer = ringar.DistributedOptimizer(SGD(0.5))
    plain = PLAIN[way](optimizer)
    assert type(plain) is SGD
    assert common.number(plain.learning_rate) == 0.5
    variable = keras.Variable(np.zeros(3, "float32"))
    plain.apply([tf.ones([3])], [variable])
    np.testing.assert_array_equal(variable, np.full(3, -0.5))
    assert is_distributed(ringar.DistributedOptimizer(plain))


@pytest.mark.ranks(2, 3, 4)
def test_models_with_a_plain_copy_are_refused(rank: int, tmp_path: Path) -> None:
    model = common.dense_model()
    model.compile(ringar.DistributedOptimizer(SGD(0.5)), "mse")
    model.save(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    clone.compile_from_config(model.get_compile_config())
    for other in (clone, keras.models.load_model(tmp_path / "model.keras"), copy.deepcopy(model)):
        with pytest.raises(ValueError, match=r"DistributedOptimizer\(model\.optimizer\)"):
            other.fit(*common.regression(4), callbacks=[ringar.callbacks.Distributed()], verbose=0)
        other.compile(ringar.DistributedOptimizer(other.optimizer), "mse")
        other.fit(*common.regression(4), callbacks=[ringar.callbacks.Distributed()], verbose=0)


@pytest.mark.ranks(1)
@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has none")
def test_an_optimizer_that_holds_a_distributed_one_is_refused() -> None:
    inner = ringar.DistributedOptimizer(SGD(0.5))
    outer = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(inner))
    with pytest.raises(ValueError, match="must not be distributed already"):
        ringar.DistributedOptimizer(outer)
