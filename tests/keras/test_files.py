"""Files of Keras' callbacks: one rank writes them, whole, whatever the order of the callbacks."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import ringar
from tests.keras import common

pytestmark = pytest.mark.usefixtures("initialized")

Exchange = Callable[[Any], list[Any]]


def compiled(seed: int = 0) -> keras.Model:
    model = common.dense_model(seed=seed)
    optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
    return model


class Once(keras.callbacks.Callback):
    """A user's callback that is for rank 0: a second rank could not make its folders."""

    rank_zero = True
    state_attributes = ("best",)

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.best = folder, -1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.best = epoch
        (self.folder / f"{epoch} {logs['loss']}").mkdir(parents=True)


class Folders(keras.callbacks.Callback):
    """As OrbaxCheckpoint: a later class of Keras, which ringar does not know by name."""

    __module__ = "keras.src.callbacks.folders"

    def __init__(self, directory: Path, monitor: str = "loss", save_freq: str = "epoch") -> None:
        super().__init__()
        self.directory, self.monitor, self.save_freq = directory, monitor, save_freq
        self.save_weights_only, self.best = True, -1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.best = epoch
        (self.directory / f"{epoch} {logs['loss']}").mkdir(parents=True)


@pytest.mark.parametrize("turn", range(3))
def test_callbacks_in_any_order(
    turn: int, shared_tmp_path: Path, rank: int, exchange: Exchange, capsys: Any
) -> None:
    best = shared_tmp_path / "best" / "model.keras"
    pattern = shared_tmp_path / "every" / "{epoch}-{batch}.weights.h5"
    # A negative metric on the other ranks: rank 0 alone would find another epoch best.
    shard = tf.data.Dataset.from_tensors(common.regression(4, seed=rank)).repeat(4)
    checkpoint = keras.callbacks.ModelCheckpoint(best, "val_loss", save_best_only=True, verbose=1)
    callbacks = [
        ringar.callbacks.Distributed(),
        checkpoint,
        keras.callbacks.ModelCheckpoint(pattern, save_weights_only=True, save_freq=3),
        keras.callbacks.CSVLogger(shared_tmp_path / "log.csv"),
        keras.callbacks.TensorBoard(shared_tmp_path / "board", update_freq="batch"),
        keras.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True),
        Folders(shared_tmp_path / "folders"),
        Once(shared_tmp_path / "once"),
    ]
    order = list(itertools.permutations(range(8)))[turn * 17419]
    capsys.readouterr()
    history = compiled(rank).fit(
        shard, epochs=3, validation_data=shard, verbose=0, callbacks=[callbacks[i] for i in order]
    )
    # The files are there for all ranks when `fit` returns.
    assert sorted(p.name for p in pattern.parent.iterdir()) == [
        f"{epoch}-{batch}.weights.h5" for epoch, batch in ((1, 3), (2, 2), (3, 1), (3, 4))
    ]
    assert [p.name for p in best.parent.iterdir()] == ["model.keras"]
    rows = list(csv.DictReader((shared_tmp_path / "log.csv").open()))
    assert [float(row["val_loss"]) for row in rows] == history.history["val_loss"]
    assert len(list((shared_tmp_path / "board" / "train").iterdir())) == 1
    # Rank 0 alone made them, by the metrics of all ranks.
    folders = sorted((shared_tmp_path / "folders").iterdir())
    expected = [f"{epoch} {loss}" for epoch, loss in enumerate(history.history["loss"])]
    assert [folder.name for folder in folders] == expected
    assert exchange([c.best for c in callbacks[6:8]]) == [[2, 2]] * len(exchange(0))
    assert ("saving model to" in capsys.readouterr().out) == (rank == 0)
    assert exchange(checkpoint.best) == [min(history.history["val_loss"])] * len(exchange(0))
    assert len({str(h) for h in exchange(history.history)}) == 1


def test_checkpoint_is_whole_or_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ringar.keras.whole_file import SavedWhole

    model, path = compiled(), tmp_path / "model.keras"
    SavedWhole(model).save(path)
    former = path.read_bytes()
    saves = keras.Model.save_weights

    def fail(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        saves(self, filepath, *args, **kwargs)
        raise OSError("disk full")

    monkeypatch.setattr(keras.Model, "save_weights", fail)
    with pytest.raises(OSError, match="disk full"):
        SavedWhole(model).save_weights(tmp_path / "model.weights.h5")
    assert path.read_bytes() == former
    assert [p.name for p in tmp_path.iterdir()] == ["model.keras"]
    assert isinstance(SavedWhole(model), keras.Model)


@pytest.mark.ranks(2)
def test_backup_that_rank_0_does_not_have(tmp_path: Path, rank: int) -> None:
    data = tf.data.Dataset.from_tensors(common.regression(4))
    callbacks = [ringar.callbacks.Distributed()]
    if rank == 1:
        callbacks.append(keras.callbacks.BackupAndRestore(tmp_path))
    with pytest.raises(ValueError, match="expected BackupAndRestore on rank 0"):
        compiled().fit(data, verbose=0, callbacks=callbacks)


@pytest.mark.ranks(2)
def test_another_saver_refuses_a_sharded_optimizer(tmp_path: Path) -> None:
    model = common.dense_model()
    model.compile(ringar.DistributedOptimizer(keras.optimizers.Adam(), shard="optimizer"), "mse")
    callbacks = [ringar.callbacks.Distributed(), Folders(tmp_path)]
    with pytest.raises(ValueError, match=r"Folders: expected .* received one with a sharded"):
        model.fit(*common.regression(4), verbose=0, callbacks=callbacks)


@pytest.mark.ranks(2)
@pytest.mark.slow
def test_orbax_checkpoints(shared_tmp_path: Path, rank: int, exchange: Exchange) -> None:
    pytest.importorskip("orbax.checkpoint")
    callback = keras.callbacks.OrbaxCheckpoint(shared_tmp_path / "orbax", max_to_keep=None)
    callbacks = [callback, ringar.callbacks.Distributed()]
    x, y = common.regression(8, seed=rank)
    compiled(rank).fit(x, y, 4, 3, verbose=0, callbacks=callbacks)
    assert sorted(p.name for p in (shared_tmp_path / "orbax").iterdir()) == ["0", "1", "2"]
