"""Training with slots in a file, or in the host's memory, is training with slots as variables."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.errors import UnsupportedError
from ringar.keras.zero.offload import OnDiskSlot
from tests.keras import common
from tests.keras.test_sharded import OPTIMIZERS, variables
from tests.keras.test_sharded_files import Stop, assert_same, state, train
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

K = keras.optimizers
STEPS = 3
FAST = ("momentum", "AdamW", "Ftrl", "averages", "accumulation")


def trained(
    rank: int, names: Any, steps: int = 6, eagerly: bool = False, **options: Any
) -> dict[str, list[np.ndarray]]:
    """Train variables by each optimizer, all in one graph; return values and slots."""
    groups = {name: variables(name) for name in names}
    optimizers = {
        name: ringar.DistributedOptimizer(OPTIMIZERS[name](), shard="optimizer", **options)
        for name in names
    }
    for name, weights in groups.items():
        optimizers[name].build(weights)
        has_slots = len(optimizers[name].variables) > 2  # not only the learning rate, and a count
        assert (has_slots and options.get("offload") == "disk") == any(
            isinstance(slot, OnDiskSlot) for slot in optimizers[name].variables
        )

    def step(number: tf.Tensor) -> None:
        for name, weights in groups.items():
            gradients = [tf.sin(v.value * float(rank + 1) + number) for v in weights]
            optimizers[name].apply(gradients, weights)

    take = step if eagerly else tf.function(step, autograph=False)
    for number in range(steps):
        take(tf.constant(float(number)))
    return {
        name: [np.asarray(v.numpy()) for v in [*weights, *optimizers[name].variables]]
        for name, weights in groups.items()
    }


@pytest.mark.parametrize(
    ("names", "eagerly", "offload"),
    [
        (FAST, False, "disk"),
        fast_if(False, ("Adam", "averages"), True, "disk"),
        fast_if(False, tuple(OPTIMIZERS), False, "disk"),
        fast_if(False, tuple(OPTIMIZERS), False, "memory"),
    ],
)
def test_numbers_are_those_without_offload(
    names: Any, eagerly: bool, offload: str, rank: int
) -> None:
    expected = trained(rank, names, eagerly=eagerly)
    received = trained(rank, names, eagerly=eagerly, offload=offload)
    for name in names:
        for a, b in zip(received[name], expected[name], strict=True):
            np.testing.assert_array_equal(a, b, name)


def fitted(**options: Any) -> keras.Model:
    model = common.dense_model()
    adam = K.Adam(0.01, use_ema=True)
    model.compile(ringar.DistributedOptimizer(adam, shard="optimizer", **options), "mse")
    train(model, STEPS)
    return model


def test_files_are_those_of_slots_in_memory(
    shared_tmp_path: Path, rank: int, exchange: Callable[[Any], Any]
) -> None:
    plain, cut = fitted(), fitted(offload="disk", offload_folder=shared_tmp_path)
    assert_same(state(cut), state(plain))
    file = shared_tmp_path / "model.keras"
    cut.save(file)
    exchange("saved")
    assert os.listdir(shared_tmp_path) == ["model.keras"]  # files of slots have no names
    again = ringar.load_model(file, shard="optimizer", offload="disk")  # whose slots exist
    for model in (cut, again, plain):
        train(model, STEPS, seed=9)
    assert_same(state(cut), state(plain))
    assert_same(state(again), state(plain))
    exchange("done")


def test_backup_resumes_bit_for_bit(
    shared_tmp_path: Path, rank: int, exchange: Callable[[Any], Any]
) -> None:
    def build() -> keras.Model:
        model = common.dense_model()
        adam = ringar.DistributedOptimizer(K.Adam(0.01), shard="gradients", offload="disk")
        model.compile(adam, "mse")
        return model

    uninterrupted, interrupted, resumed = build(), build(), build()
    train(uninterrupted, STEPS, epochs=2)
    backup = keras.callbacks.BackupAndRestore(shared_tmp_path / str(rank), delete_checkpoint=False)
    with pytest.raises(KeyboardInterrupt):
        train(interrupted, STEPS, epochs=2, callbacks=[backup, Stop(0)])
    exchange("stopped")
    train(resumed, STEPS, epochs=2, callbacks=[backup])
    assert_same(state(resumed), state(uninterrupted))
    exchange("done")


@pytest.mark.parametrize("where", ["argument", "environment"])
def test_a_folder_that_cannot_be_written_is_an_error_on_all_ranks(
    where: str, tmp_path: Path, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("missing" if rank == size - 1 else ".")
    options: dict[str, Any] = {"shard": "optimizer", "offload": "disk"}
    if where == "argument":
        options["offload_folder"] = folder
    else:
        monkeypatch.setenv("RINGAR_OFFLOAD_FOLDER", str(folder))
    model = common.dense_model()
    model.compile(ringar.DistributedOptimizer(K.Adam(0.01), **options), "mse")
    before = common.values(model)
    message = rf"(?s)rank {rank} \| .*with room for .*No such file.*\(rank {size - 1}\); make room"
    for _ in range(2):  # this optimizer has no slots, whatever has become of the folder
        with pytest.raises(OSError, match=message):
            train(model, STEPS)
        assert_same(common.values(model), before)
        folder.mkdir(exist_ok=True)
        model.compile(model.optimizer, "mse")


def test_compiled_steps_are_refused_before_training(rank: int) -> None:
    model = common.dense_model()
    adam = ringar.DistributedOptimizer(K.Adam(0.01), shard="optimizer", offload="disk")
    model.compile(adam, "mse", jit_compile=True)
    before = common.values(model)
    with pytest.raises(UnsupportedError, match=rf"rank {rank} \| .*Pass jit_compile=False"):
        train(model, STEPS)
    assert_same(common.values(model), before)


@pytest.mark.ranks(1)
def test_sparse_gradients_of_one_rank() -> None:
    of_both = []
    for offload in (None, "disk"):
        table = keras.Variable(np.ones((5, 2), np.float32))
        adam = K.Adam(0.1)
        optimizer = ringar.DistributedOptimizer(adam, shard="optimizer", offload=offload)
        for rows in ([0, 3], [3, 4]):
            gradient = tf.IndexedSlices(tf.ones((2, 2)), tf.constant(rows), (5, 2))
            optimizer.apply([gradient], [table])
        of_both.append([table.numpy(), *(v.numpy() for v in optimizer.variables)])
    assert_same(of_both[0], of_both[1])


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="`offload` needs `shard`"):
        ringar.DistributedOptimizer("adam", offload="disk")
    with pytest.raises(ValueError, match='`offload` must be None, "memory" or "disk"'):
        ringar.DistributedOptimizer("adam", shard="optimizer", offload="tape")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='`offload_folder` needs offload="disk"'):
        ringar.DistributedOptimizer("adam", shard="optimizer", offload_folder="/tmp")
