"""Embeddings train as in one process that adds slices of equal rows before the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.keras import sparse
from tests import one_process
from tests.keras import common
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

ROWS = 4 * common.GLOBAL_BATCH


def model_of(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    layers = [common.TokensAndPositions(3), keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((4,), dtype="int32"), *layers])


@pytest.fixture
def _float64() -> Any:
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy("float32")


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize(
    ("way", "as_dense"),
    [
        ("plain", False),
        fast_if(False, "plain", True),
        ("jit", False),
        ("jit, batches of unknown size", False),
    ],
)
def test_equals_one_process(
    way: str, as_dense: bool, rank: int, exchange: Callable[[Any], Any]
) -> None:
    data = common.tokens(ROWS)
    single = model_of(0)
    single.compile(common.summed(keras.optimizers.Adam(0.01)), "mse")
    one_process.fit(single, common.batches(data))

    model = model_of(rank)
    optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(0.01), sparse_as_dense=as_dense)
    model.compile(optimizer, "mse", jit_compile=way != "plain")
    shard = common.own_batches(data)
    if "unknown" in way:
        shard = shard.unbatch().batch(common.GLOBAL_BATCH // ringar.size())
    model.fit(shard, verbose=0, callbacks=[ringar.callbacks.Distributed()])

    assert common.largest_difference(common.values(model), common.values(single)) < 1e-7
    assert len(set(exchange(common.digest(model)))) == 1


OPTIMIZERS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("Adadelta", "Adafactor", "Adagrad", "Adamax", "Ftrl", "Lamb", "Lion")},
    **{name: {} for name in ("AdamW", "Nadam")},
    "SGD": {"momentum": 0.9, "nesterov": True},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adam": {"amsgrad": True, "clipnorm": 0.1},
}


@pytest.mark.ranks(1, 3)
def test_every_optimizer_treats_one_slice_per_row_as_a_dense_gradient(rank: int) -> None:
    def train(name: str, as_dense: bool) -> np.ndarray:
        variable = keras.Variable(np.ones((6, 2)), dtype="float64")
        optimizer = getattr(keras.optimizers, name)(0.1, **OPTIMIZERS[name])
        ringar.DistributedOptimizer(optimizer, sparse_as_dense=as_dense)
        for step, rows in enumerate([[0, 2, 2, 5], [1, 2], [0, 4, 4, 4]]):
            rows = [row % 6 for row in rows for _ in range(rank + 1)]
            values = np.random.default_rng([step, rank]).normal(size=(len(rows), 2))
            slices = tf.IndexedSlices(tf.constant(values), rows, tf.constant([6, 2]))
            optimizer.apply([slices], [variable])
        return np.array(variable)

    for name in OPTIMIZERS:
        np.testing.assert_allclose(train(name, False), train(name, True), rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_one_slice_per_row(dtype: str, rank: int, size: int) -> None:
    rows = [3, 1, 3] + [size] * rank
    slices = tf.IndexedSlices(
        tf.ones([len(rows), 2], dtype), tf.constant(rows, tf.int64), tf.constant([9, 2], tf.int64)
    )
    options = {"op": ringar.Sum, "compression": ringar.Compression.none}
    factors = {"prescale_factor": 1.0, "postscale_factor": 1.0}
    total = sparse.reduced(slices, "t", None, options | factors)
    assert isinstance(total, tf.IndexedSlices)
    assert len(set(total.indices.numpy())) == len(total.indices)
    expected = np.zeros((9, 2))
    for r in range(size):
        np.add.at(expected, [3, 1, 3] + [size] * r, 1.0)
    np.testing.assert_array_equal(tf.cast(tf.convert_to_tensor(total), "float64"), expected)
