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


@pytest.mark.parametrize("turn", range(3))
def test_callbacks_in_any_order(
    turn: int, shared_tmp_path: Path, rank: int, exchange: Exchange, capsys: Any
) -> None:
    best = shared_tmp_path / "best" / "model.keras"
    every = shared_tmp_path / "every" / "{epoch}-{batch}.weights.h5"
    # A negative metric on the other ranks: rank 0 alone would find another epoch best.
    own = tf.data.Dataset.from_tensors(common.regression(4, seed=rank)).repeat(4)
    checkpoint = keras.callbacks.ModelCheckpoint(best, "val_loss", save_best_only=True, verbose=1)
    callbacks = [
        ringar.callbacks.Distributed(),
        checkpoint,
        keras.callbacks.ModelCheckpoint(every, save_weights_only=True, save_freq=3),
        keras.callbacks.CSVLogger(shared_tmp_path / "log.csv"),
        keras.callbacks.TensorBoard(shared_tmp_path / "board", update_freq="batch"),
        keras.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True),
    ]
    order = list(itertools.permutations(range(6)))[turn * 311]
    capsys.readouterr()
    history = compiled(rank).fit(
        own, epochs=3, validation_data=own, verbose=0, callbacks=[callbacks[i] for i in order]
    )
    # The files are there for all ranks when `fit` returns.
    assert sorted(p.name for p in every.parent.iterdir()) == [
        f"{epoch}-{batch}.weights.h5" for epoch, batch in ((1, 3), (2, 2), (3, 1), (3, 4))
    ]
    assert [p.name for p in best.parent.iterdir()] == ["model.keras"]
    rows = list(csv.DictReader((shared_tmp_path / "log.csv").open()))
    assert [float(row["val_loss"]) for row in rows] == history.history["val_loss"]
    assert len(list((shared_tmp_path / "board" / "train").iterdir())) == 1
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
