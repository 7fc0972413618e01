"""Sharded training on a grid equals plain training on it: slices of parts and whole layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.errors import UnsupportedError
from ringar.sharding import slots
from ringar.sharding.cut import Cut, mark
from tests.comparison import assert_all_close
from tests.keras import common
from tests.parallel import nets
from tests.parallel.conftest import OpenGrid
from tests.plugin import fast_if

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(2, 4)]

K = keras.optimizers
STEPS = 20

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: K.SGD(0.1, momentum=0.9),
    "Adam": lambda: K.Adam(0.01, amsgrad=True),
    "AdamW": lambda: K.AdamW(0.01, weight_decay=0.5, use_ema=True, ema_overwrite_frequency=3),
    "clipnorm": lambda: K.SGD(0.1, clipnorm=0.5),
    "global_clipnorm": lambda: K.SGD(0.1, global_clipnorm=0.5),
}


def trained(
    grid: ringar.parallel.Grid, shard: Any, jit: bool, op: Any
) -> dict[str, list[np.ndarray]]:
    """Train whole and cut variables by each optimizer, all in one graph."""
    rng = np.random.default_rng(3)
    variables: dict[str, list[keras.Variable]] = {}
    optimizers = {}
    for name, make in OPTIMIZERS.items():
        replicas = [keras.Variable(rng.normal(size=s).astype("float32")) for s in ((3, 5), ())]
        parts = [
            keras.Variable(np.split(rng.normal(size=s).astype("float32"), grid.model)[grid.part])
            for s in ((6, 3), (2,))
        ]
        for part in parts:
            mark(part, Cut(0, grid))
        variables[name] = [replicas[0], parts[0], replicas[1], parts[1]]
        optimizers[name] = ringar.DistributedOptimizer(make(), op=op, grid=grid, shard=shard)
        optimizers[name].build(variables[name])

    @tf.function(jit_compile=jit, autograph=False)
    def step(number: tf.Tensor) -> None:
        for name, group in variables.items():
            gradients = [tf.sin(v.value * float(grid.group + 1) + number) for v in group]
            optimizers[name].apply(gradients, group)

    for number in range(STEPS):
        step(tf.constant(float(number)))
    return {name: [v.numpy() for v in group] for name, group in variables.items()}


@pytest.mark.parametrize(("jit", "op"), [(False, ringar.Average), fast_if(False, True, ringar.Sum)])
def test_optimizers_train_as_without_shards(
    jit: bool, op: Any, open_grid: OpenGrid, size: int
) -> None:
    grid = open_grid(2)
    expected, received = (trained(grid, shard, jit, op) for shard in (None, "optimizer"))
    for name, values in received.items():
        exact = size == 2 and not jit and "norm" not in name
        difference = common.largest_difference(values, expected[name])
        assert difference <= (0.0 if exact else 1e-6), name


def fitted(grid: ringar.parallel.Grid, shard: Any, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(4)
    model = nets.split_net(grid=grid)
    model.compile(
        ringar.DistributedOptimizer(K.Adam(0.01), grid=grid, shard=shard), nets.LOSS, **options
    )
    nets.fit(model, grid, count=2)
    return model


def test_fit_and_merge(open_grid: OpenGrid, size: int, shared_tmp_path: Path) -> None:
    grid = open_grid(2)
    model, reference = fitted(grid, "gradients"), fitted(grid, None)
    assert common.largest_difference(common.values(model), common.values(reference)) <= 1e-6
    bytes_of = [
        sum(np.asarray(v).nbytes for v in m.optimizer.variables) for m in (model, reference)
    ]
    assert bytes_of[0] < bytes_of[1] or grid.data == 1  # all layers are cut
    merged = [ringar.parallel.merge(m) for m in (model, reference)]
    states = [[np.asarray(v) for v in [*m.weights, *m.optimizer.variables]] for m in merged]
    assert common.largest_difference(*states) <= 1e-6
    with pytest.raises(UnsupportedError, match=r"save ringar\.parallel\.merge"):
        model.save(shared_tmp_path / "model.keras")


class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            raise KeyboardInterrupt


def test_backup_resumes_bit_for_bit(
    open_grid: OpenGrid, rank: int, shared_tmp_path: Path, exchange: Callable[[Any], Any]
) -> None:
    grid = open_grid(2)
    x, y = common.regression(32, seed=grid.group)

    def run(*callbacks: Any) -> list[np.ndarray]:
        keras.utils.set_random_seed(4)
        model = keras.Sequential([
            keras.Input((x.shape[1],)),
            ringar.layers.SplitDense(8, activation="tanh", reads="whole", grid=grid),
            ringar.layers.Gather(grid=grid),
            keras.layers.Dense(y.shape[1]),
        ])  # fmt: skip
        adam = ringar.DistributedOptimizer(K.Adam(0.05), grid=grid, shard="optimizer")
        model.compile(adam, "mse")
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
        model.fit(data, epochs=2, verbose=0, callbacks=[ringar.callbacks.Distributed(), *callbacks])
        assert any(slots.slices(model.optimizer))
        return [np.asarray(v) for v in [*model.weights, *model.optimizer.variables]]

    expected = run()
    backup = keras.callbacks.BackupAndRestore(shared_tmp_path / str(rank), delete_checkpoint=False)
    with pytest.raises(KeyboardInterrupt):
        run(backup, Stop())
    exchange("stopped")
    assert_all_close(run(backup), expected)
    exchange("done")


def test_a_part_needs_its_grid(open_grid: OpenGrid) -> None:
    grid = open_grid(2)
    part = keras.Variable(np.zeros(4, "float32"))
    mark(part, Cut(0, grid))
    optimizer = ringar.DistributedOptimizer(K.SGD(0.1), shard="optimizer")
    with pytest.raises(ValueError, match="`grid` must be the one that the layers were made in"):
        optimizer.build([part])
