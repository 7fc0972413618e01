"""A run that was interrupted and started again ends with the bits of one that was not."""

from __future__ import annotations

import functools
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.keras import share, training_state
from ringar.sharding import slots
from tests.keras import common, plain
from tests.plugin import fast_if, run_job

pytestmark = pytest.mark.usefixtures("initialized")

EPOCHS, STEPS = 4, 5
Exchange = Callable[[Any], list[Any]]


class CrashError(Exception):
    """What ends a run in these tests."""


class Crash(keras.callbacks.Callback):
    """Raise at the end of the n-th batch that is trained, before or behind the backup."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise CrashError


class Count(keras.callbacks.Callback):
    """Count the batches that are trained."""

    batches = 0
    iterations = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        self.iterations = common.number(self.model.optimizer.iterations)


class Tell(keras.callbacks.Callback):
    """Send SIGTERM to the last rank in the third batch of the second epoch."""

    epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == (1, 2) and ringar.rank() == ringar.size() - 1:
            for _ in range(2):  # the batch system's, and the launcher's
                os.kill(os.getpid(), signal.SIGTERM)


class Decay(keras.callbacks.Callback):
    """Change the learning rate by its former value: to do it twice would be wrong."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = self.model.optimizer.learning_rate * 0.9


def make_model(rank: int) -> keras.Model:
    """A model whose every kind of state matters: seeds, moving statistics, slots, averages."""
    keras.utils.set_random_seed(3 + rank)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.5)
    model.compile(ringar.DistributedOptimizer(optimizer), "mse", metrics=["mae"], jit_compile=False)
    return model


@functools.cache
def uninterrupted(save_freq: Any = "epoch") -> tuple[Any, Any]:
    """A run that nothing interrupts, without a backup."""
    return train(None, save_freq)


def train(folder: Path | None, save_freq: Any, crash: int = 0, extras: Any = ()) -> tuple[Any, Any]:
    """Train on shuffled data; return the digest of all state, and the history."""
    rank = ringar.rank()
    model = make_model(rank)
    x, y = common.regression(8 * STEPS, seed=rank)
    data: dict[str, Any] = {"x": x, "y": y, "batch_size": 8}
    if save_freq == 3:
        examples = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(9, seed=4)
        data = {"x": examples.batch(8).repeat(), "steps_per_epoch": STEPS}
        model.steps_per_execution = 2
    if folder is not None:
        extras = [*extras, keras.callbacks.BackupAndRestore(folder / "backup", save_freq=save_freq)]
    callbacks = [
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=1.0, cooldown=1),
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        Crash(crash),
        ringar.callbacks.Distributed(),
        Decay(),
        *extras,
    ]
    random.Random(str(folder)).shuffle(callbacks)
    history = model.fit(**data, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    seeds = [keras.ops.convert_to_numpy(v).tolist() for v in model.variables if "seed" in v.path]
    return (common.digest(model), seeds), history


@pytest.mark.parametrize("save_freq", ["epoch", 3])
def test_interrupted_run_ends_as_one_that_was_not(
    save_freq: Any, shared_tmp_path: Path, size: int
) -> None:
    expected, history = uninterrupted(save_freq)
    draw = random.Random(f"{save_freq} {size}")
    folder = shared_tmp_path / "crashed"
    with pytest.raises(CrashError):
        train(folder, save_freq, crash=draw.randint(6, 12))  # Keras sees 3 or 5 batches per epoch
    result, resumed = train(folder, save_freq)
    assert result == expected
    assert resumed.epoch[0] > 0
    for key, values in resumed.history.items():
        assert values == history.history[key][resumed.epoch[0] :]
    assert not (folder / "backup").exists()


@pytest.mark.ranks(2, 4)
def test_interrupted_run_on_a_grid(shared_tmp_path: Path, rank: int, exchange: Exchange) -> None:
    """Every rank gets back its part of the split layer, and of the optimizer's state."""
    grid = ringar.parallel.Grid(model=2)
    x, y = common.regression(8 * STEPS, seed=grid.group)

    def run(folder: Path, crash: int = 0) -> str:
        ringar.set_random_seed(3)
        layers = [
            keras.Input((6,)),
            ringar.layers.SplitDense(8, activation="tanh", reads="whole", grid=grid),
            ringar.layers.Gather(grid=grid),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential(layers)
        adam = ringar.DistributedOptimizer(keras.optimizers.Adam(0.05), grid=grid)
        model.compile(adam, "mse", jit_compile=False)
        callbacks = [
            keras.callbacks.BackupAndRestore(folder, save_freq=3),
            Crash(crash),
            ringar.callbacks.Distributed(),
        ]
        model.fit(x, y, 8, 2, verbose=0, callbacks=callbacks)
        return common.digest(model)

    expected = run(shared_tmp_path / "whole")
    with pytest.raises(CrashError):
        run(shared_tmp_path / "crashed", crash=8)
    assert exchange(run(shared_tmp_path / "crashed")) == exchange(expected)
    grid.close()


@pytest.mark.ranks(2)
def test_crash_while_a_file_is_written(
    shared_tmp_path: Path, rank: int, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = uninterrupted()
    file_count = 0

    def replace(source: str, target: str) -> None:
        nonlocal file_count
        file_count += target.endswith(".h5")
        if file_count == 3:
            raise OSError(28, "No space left on device")
        real(source, target)

    real = os.replace
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="No space left on device") as error:
        train(shared_tmp_path, 2)
    assert rank == 0 or "expected rank 0 to write" in str(error.value)
    monkeypatch.undo()
    assert train(shared_tmp_path, 2)[0] == expected


def test_signal_saves_and_stops_all_ranks(
    shared_tmp_path: Path, rank: int, exchange: Exchange, caplog: pytest.LogCaptureFixture
) -> None:
    expected, _ = uninterrupted()
    file = shared_tmp_path / "models" / "model.keras"
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        train(shared_tmp_path, "epoch", extras=[Tell(), ringar.callbacks.SaveOnSignal(file)])
    assert end.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert ("SIGTERM: saved" in caplog.text) == (rank == 0)
    # At the next step of all: the third batch of the second epoch was the eighth.
    assert common.number(ringar.load_model(file).optimizer.iterations) == STEPS + 3
    exchange("loaded")
    result, resumed = train(shared_tmp_path, "epoch")
    assert result == expected
    assert resumed.epoch == [1, 2, 3]


def test_signal_without_anything_to_save_to(rank: int) -> None:
    model = make_model(rank)
    x, y = common.regression(8)
    saver = ringar.callbacks.SaveOnSignal()
    with pytest.raises(ValueError, match=r"expected ringar.callbacks.Distributed\(\)"):
        model.fit(x, y, verbose=0, callbacks=[saver])
    with pytest.raises(ValueError, match="expected a path, or keras.callbacks.BackupAndRestore"):
        model.fit(x, y, verbose=0, callbacks=[saver, ringar.callbacks.Distributed()])


def test_optimizers_in_containers_belong_to_the_state() -> None:
    for hold in plain.CONTAINERS.values():
        names = [o.name for o in share.optimizers_of(plain.Held(hold))]
        assert [name[:3].lower() for name in names] == ["sgd", "ada"]


def test_words_and_numbers_of_a_model_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of each of them would take a quarter of a second, several times per epoch."""
    words = [f"word {i}" for i in range(10_000)]
    model = plain.Held(lambda a, b: (a, b, words, dict.fromkeys(words, 0), set(words)))
    search = mock.Mock(wraps=slots.optimizers_within)
    monkeypatch.setattr(slots, "optimizers_within", search)
    assert len(share.optimizers_of(model)) == 2
    assert search.call_count < 1000


@pytest.mark.ranks(2, 3, 4)
def test_backup_on_rank_0_alone(shared_tmp_path: Path, rank: int, exchange: Exchange) -> None:
    x, y = common.regression(16, seed=rank)
    for epochs in (1, 3):
        model = make_model(rank)
        callbacks = [ringar.callbacks.Distributed()]
        if rank == 0:
            backup = keras.callbacks.BackupAndRestore(shared_tmp_path, delete_checkpoint=False)
            callbacks.append(backup)
        history = model.fit(x, y, 8, epochs, verbose=0, callbacks=callbacks)
    assert history.epoch == [1, 2]
    weights = [keras.ops.convert_to_numpy(w).tobytes() for w in model.trainable_weights]
    assert exchange(weights) == [weights] * ringar.size()


class Outputs(keras.losses.Loss):
    """The outputs themselves: the weight in the end is a sum over the rows that were trained."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return y_pred[:, 0]


@pytest.mark.ranks(1, 2, 3)
def test_elastic_goes_on_from_a_backup(shared_tmp_path: Path, rank: int) -> None:
    """Each row counts once in an epoch; a job without Elastic refuses the middle of one."""
    x = np.arange(61, dtype=np.float32)[:, None]

    def run(*callbacks: keras.callbacks.Callback) -> tuple[float, keras.callbacks.History]:
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(
            ringar.DistributedOptimizer(keras.optimizers.SGD(1.0)), Outputs(reduction="sum")
        )
        model.layers[0].kernel.assign([[0.0]])
        backup = keras.callbacks.BackupAndRestore(shared_tmp_path, save_freq=3)
        data = ringar.elastic.Dataset((x, x), batch_size=2, shuffle=True)
        callbacks = (backup, *callbacks, ringar.callbacks.Distributed())
        history = model.fit(data, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
        return float(model.layers[0].kernel[0, 0]), history

    steps = len(ringar.elastic.Dataset(x, batch_size=2))  # of this rank
    stopping = keras.callbacks.EarlyStopping("loss", patience=5)
    with pytest.raises(CrashError):
        run(Crash(steps + 5), ringar.callbacks.Elastic(every=4), stopping)
    with pytest.raises(ValueError, match=r"expected ringar.callbacks.Elastic\(\)"):
        run()
    again = keras.callbacks.EarlyStopping("loss", patience=5)
    weight, history = run(ringar.callbacks.Elastic(every=4), again)
    assert history.epoch == [1, 2]
    assert weight == -3 * x.sum()
    assert again.best < stopping.best  # an epoch before the crash counts, and those behind it


@pytest.mark.ranks(2)
def test_backup_of_another_number_of_ranks(shared_tmp_path: Path, rank: int, exchange: Any) -> None:
    """It goes on after as many examples: two batches of two ranks are four of one."""
    with pytest.raises(CrashError):
        train(shared_tmp_path, 4, crash=5)
    if rank == 0:
        path = str(shared_tmp_path / "backup" / "latest.weights.h5")
        state = training_state.read(path)
        assert state is not None
        assert (state["epoch"], state["batches"], state["ranks"]) == (0, 4, 2)
        with h5py.File(path, "a") as file:
            del file["ringar"]
        training_state.write(path, {**state, "ranks": 1, "own": state["own"][:1]})
    exchange("written")
    counter = Count()
    train(shared_tmp_path, "epoch", extras=[counter])
    assert counter.batches == EPOCHS * STEPS - 2
    assert counter.iterations == 4 + counter.batches


# A tiny model on scikit-learn's digits. The n-th start of the job lives until `LIVES[n]` batches.
PROGRAM = """
import os, signal, sys
import keras, numpy as np
from sklearn.datasets import load_digits
import ringar

folder, victim, life, result = sys.argv[1:]
ringar.init()
keras.utils.set_random_seed(5 + ringar.rank())
x, y = ringar.data.shard((load_digits().data[:512] / 16, load_digits().target[:512]))
layers = keras.layers
model = keras.Sequential([keras.Input((64,)), layers.Dense(16, "relu"), layers.Dropout(0.5),
                          layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(ringar.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss)

class Kill(keras.callbacks.Callback):
    left = int(life)
    def on_train_batch_begin(self, batch, logs=None):
        Kill.left -= 1
        if Kill.left == 0 and ringar.rank() == int(victim):
            os.kill(os.getpid(), signal.SIGKILL)

model.fit(x, y, 32, 3, verbose=0, callbacks=[
    keras.callbacks.BackupAndRestore(folder, save_freq=5), Kill(), ringar.callbacks.Distributed(),
])
if ringar.rank() == 0:
    np.savez(result, *(keras.ops.convert_to_numpy(w) for w in model.weights))
"""


@pytest.mark.job
@pytest.mark.deadline(240)
@pytest.mark.parametrize("ranks", [fast_if(ranks == 2, ranks) for ranks in (1, 2, 3, 4)])
def test_killed_job_ends_with_the_weights_of_one_that_was_not(ranks: int, tmp_path: Path) -> None:
    draw = random.Random(16)

    def start(folder: str, life: int) -> Any:
        script = tmp_path / "train.py"
        script.write_text(PROGRAM)
        words = [tmp_path / folder, draw.randrange(ranks), life, tmp_path / f"{folder}.npz"]
        return run_job(ranks, [sys.executable, str(script), *map(str, words)])

    start("whole", 0).check()
    start("killed", draw.randint(6, 12)).check(137)  # four ranks have 12 batches
    start("killed", 0).check()
    uninterrupted, killed = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "killed.npz")
    for name in uninterrupted.files:
        np.testing.assert_array_equal(uninterrupted[name], killed[name])
