"""Files of sharded training are those of a plain optimizer, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import ringar
from ringar.errors import UnsupportedError
from ringar.sharding import slots
from tests.keras import common
from tests.plugin import run_job

pytestmark = pytest.mark.usefixtures("initialized")

K = keras.optimizers


def trained(shard: Any, steps: int = 4, **fit: Any) -> keras.Model:
    model = common.dense_model()
    model.compile(ringar.DistributedOptimizer(K.Adam(0.01, use_ema=True), shard=shard), "mse")
    train(model, steps, **fit)
    return model


def train(
    model: keras.Model, steps: int, *, epochs: int = 1, callbacks: Any = (), seed: int = 7
) -> None:
    data = common.own_batches(common.regression(steps * common.GLOBAL_BATCH, seed))
    first = ringar.callbacks.Distributed()
    model.fit(data, epochs=epochs, verbose=0, callbacks=[first, *callbacks])


def state(model: keras.Model) -> list[np.ndarray]:
    return [keras.ops.convert_to_numpy(v) for v in [*model.weights, *model.optimizer.variables]]


def assert_same(first: list[np.ndarray], second: list[np.ndarray], atol: float = 0.0) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_file_is_that_of_plain_training_and_loads_in_any_way(
    dtype: str,
    size: int,
    policy: Callable[[str], None],
    shared_tmp_path: Path,
    exchange: Callable[[Any], Any],
) -> None:
    policy(dtype)
    plain, cut = trained(None), trained("optimizer")
    file = shared_tmp_path / "model.keras"
    cut.save(file)  # on every rank
    loaded = keras.models.load_model(file)  # without ringar
    assert type(loaded.optimizer) is (K.Adam if dtype == "float32" else K.LossScaleOptimizer)
    assert_same(state(loaded), state(plain), 0.0 if size <= 2 else 1e-6)

    # In a job again it goes on as if it had not been saved, cut or not.
    again = ringar.load_model(file, shard="gradients")
    lengths = [v.shape for v in slots.common(again.optimizer)]
    assert size == 1 or len(lengths) < len(again.optimizer.variables)
    for model in (cut, again):
        train(model, 2, seed=9)
    assert_same(state(again), state(cut))
    exchange("done")


def test_weights_alone(shared_tmp_path: Path, exchange: Callable[[Any], Any]) -> None:
    model = trained("gradients")
    file = shared_tmp_path / "model.weights.h5"
    model.save_weights(file)
    before = state(model)
    train(model, 2, seed=9)
    model.load_weights(file)
    assert_same(state(model), before)
    exchange("done")


def test_checkpoints_are_saved_together(
    rank: int, shared_tmp_path: Path, exchange: Callable[[Any], Any]
) -> None:
    path = str(shared_tmp_path / "{epoch}.keras")
    checkpoint = keras.callbacks.ModelCheckpoint(path, monitor="loss", save_best_only=True)
    model = trained("optimizer", 2, epochs=2, callbacks=[checkpoint])
    exchange("trained")
    assert (shared_tmp_path / "1.keras").exists()
    best = max(shared_tmp_path.glob("*.keras"))
    loaded = ringar.load_model(best, shard="optimizer")
    assert common.number(loaded.optimizer.iterations) in (2, 4)
    assert [v.shape for v in loaded.optimizer.variables] == [
        v.shape for v in model.optimizer.variables
    ]
    exchange("done")


class Stop(keras.callbacks.Callback):
    """Interrupt the training at the end of an epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.epoch:
            raise KeyboardInterrupt


def test_backup_resumes_bit_for_bit(
    rank: int, shared_tmp_path: Path, exchange: Callable[[Any], Any]
) -> None:
    expected = state(trained("optimizer", 3, epochs=3))
    # Each rank has a folder of its own, of which only that of the first is used.
    folder = shared_tmp_path / f"{rank}"
    backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    with pytest.raises(KeyboardInterrupt):
        trained("optimizer", 3, epochs=3, callbacks=[backup, Stop(1)])
    exchange("stopped")
    assert (folder / "latest.weights.h5").exists() == (rank == 0)
    resumed = trained("optimizer", 3, epochs=3, callbacks=[backup])
    assert_same(state(resumed), expected)
    exchange("done")


@pytest.mark.ranks(2)
def test_what_cannot_be_saved(
    rank: int, shared_tmp_path: Path, exchange: Callable[[Any], Any]
) -> None:
    model = trained("optimizer", 1)
    # The other ranks raise, too, and can go on.
    with pytest.raises((UnsupportedError, OSError), match="the older format"):
        model.save(shared_tmp_path / "model.h5")
    with pytest.raises(OSError, match=r"\.keras" if rank else "."):
        model.save(shared_tmp_path / "missing" / "model.keras")
    by_batches = keras.callbacks.ModelCheckpoint(str(shared_tmp_path / "a.keras"), save_freq=2)
    with pytest.raises(ValueError, match='ModelCheckpoint: expected save_freq="epoch"'):
        train(model, 1, callbacks=[by_batches])
    averages = keras.callbacks.SwapEMAWeights()
    with pytest.raises(ValueError, match="SwapEMAWeights: expected an optimizer"):
        train(model, 1, callbacks=[averages])
    train(model, 1)
    exchange("done")


SAVE = """
import sys
import ringar
from tests.keras.test_sharded_files import trained
ringar.init()
trained("optimizer").save(sys.argv[1])
"""
LOAD = """
import sys
import numpy as np
import ringar
from tests.keras.test_sharded_files import state, train
ringar.init()
model = ringar.load_model(sys.argv[1], shard="optimizer")
train(model, 2, seed=9)
model.save(sys.argv[2])
"""


@pytest.mark.job
@pytest.mark.slow
def test_from_four_ranks_to_two_and_to_one(tmp_path: Path) -> None:
    of_four = tmp_path / "4.keras"
    run_job(4, SAVE, args=[str(of_four)]).check()
    for ranks in (2, 1):
        file = tmp_path / f"{ranks}.keras"
        run_job(ranks, LOAD, args=[str(of_four), str(file)]).check()
    of_two_ranks, of_one_rank = (keras.models.load_model(tmp_path / f"{n}.keras") for n in (2, 1))
    assert common.number(of_two_ranks.optimizer.iterations) == 6
    assert_same(state(of_two_ranks), state(of_one_rank), 1e-6)
