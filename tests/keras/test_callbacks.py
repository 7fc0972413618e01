"""The callbacks: what ranks agree on at the start, at the end of an epoch, and when they differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.keras import common

pytestmark = pytest.mark.usefixtures("initialized")

SGD = keras.optimizers.SGD
Exchange = Callable[[Any], list[Any]]


def compiled(model: keras.Model, optimizer: Any = None, **options: Any) -> keras.Model:
    model.compile(ringar.DistributedOptimizer(optimizer or SGD(0.1)), "mse", **options)
    return model


class Recorder(keras.callbacks.Callback):
    """Keeps what it is shown at the end of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[dict[str, float]] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.epochs.append(dict(logs or {}))


@pytest.mark.parametrize(
    "callback",
    [
        lambda root: ringar.callbacks.BroadcastGlobalVariablesCallback(root),
        lambda root: ringar.callbacks.Distributed(root_rank=root),
    ],
    ids=["broadcast", "distributed"],
)
def test_broadcast_at_the_start(
    callback: Callable[[int], Any], rank: int, size: int, exchange: Exchange
) -> None:
    model = compiled(common.dense_model(seed=rank), keras.optimizers.Adam(0.1 * (rank + 1)))
    root = size - 1
    of_root = exchange(common.values(model))[root]
    initial_values: list[list[np.ndarray]] = []

    class Begin(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            initial_values.append(common.values(self.model))

    data = tf.data.Dataset.from_tensors(common.regression(4))
    model.fit(data, verbose=0, callbacks=[callback(root), Begin()])
    assert common.largest_difference(initial_values[0], of_root) == 0.0
    assert common.number(model.optimizer.learning_rate) == pytest.approx(0.1 * size)
    assert len(set(exchange(common.digest(model)))) == 1


def test_seeds_stay_each_ranks_own(rank: int, size: int, exchange: Exchange) -> None:
    keras.utils.set_random_seed(rank)
    dropout = keras.layers.Dropout(0.5)
    model = compiled(keras.Sequential([keras.Input((6,)), dropout, keras.layers.Dense(1)]))
    data = tf.data.Dataset.from_tensors(common.regression(4))
    model.fit(data, verbose=0, callbacks=[ringar.callbacks.Distributed()])
    seeds = exchange(keras.ops.convert_to_numpy(dropout.seed_generator.state).tolist())
    assert len({str(seed) for seed in seeds}) == size


def test_model_that_its_first_batch_builds(rank: int, exchange: Exchange) -> None:
    keras.utils.set_random_seed(rank)
    model = compiled(keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)]))
    data = tf.data.Dataset.from_tensors(common.regression(4)).repeat(3)
    model.fit(data, verbose=0, callbacks=[ringar.callbacks.Distributed()])
    assert len(set(exchange(common.digest(model)))) == 1


@pytest.mark.parametrize(
    "callback",
    [ringar.callbacks.MetricAverageCallback, ringar.callbacks.Distributed],
    ids=["average", "distributed"],
)
def test_metrics_are_averaged_for_later_callbacks(
    callback: Callable[[], Any], rank: int, exchange: Exchange
) -> None:
    model = compiled(common.dense_model(seed=0), metrics=["mae"])
    shard = tf.data.Dataset.from_tensors(common.regression(4, seed=rank)).repeat(2)
    before, after = Recorder(), Recorder()
    callbacks = [before, callback(), after]
    history = model.fit(shard, epochs=2, validation_data=shard, verbose=0, callbacks=callbacks)
    assert set(before.epochs[0]) == {"loss", "mae", "val_loss", "val_mae"}
    for epoch, of_all in enumerate(zip(*exchange(before.epochs), strict=True)):
        for key in of_all[0]:
            mean = np.mean([logs[key] for logs in of_all])
            assert after.epochs[epoch][key] == pytest.approx(mean, rel=1e-6)
            assert history.history[key][epoch] == after.epochs[epoch][key]
    assert len({str(epochs) for epochs in exchange(after.epochs)}) == 1


def test_callbacks_that_decide_by_metrics_decide_alike(rank: int, exchange: Exchange) -> None:
    model = compiled(common.dense_model(seed=0), SGD(0.0001))
    x, y = common.regression(8, seed=rank)
    # On its own, each rank would see something else: metrics that fall here rise there.
    val = tf.data.Dataset.from_tensors((x, y * (1 if rank else -1)))
    callbacks = [
        ringar.callbacks.Distributed(),
        keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=0.5),
        keras.callbacks.EarlyStopping(patience=3, min_delta=0.5, restore_best_weights=True),
    ]
    data = tf.data.Dataset.from_tensors((x, y))
    history = model.fit(data, epochs=9, validation_data=val, verbose=0, callbacks=callbacks)
    assert len(history.epoch) == 4
    assert len({str(h) for h in exchange(history.history)}) == 1
    assert len(set(exchange(common.digest(model)))) == 1


def test_one_rank_that_wants_to_stop_stops_all(rank: int, size: int) -> None:
    class TimeLimit(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if rank == size - 1 and epoch == 1:
                self.model.stop_training = True

    model = compiled(common.dense_model(seed=0))
    data = tf.data.Dataset.from_tensors(common.regression(4))
    callbacks = [TimeLimit(), ringar.callbacks.Distributed()]
    history = model.fit(data, epochs=5, verbose=0, callbacks=callbacks)
    assert history.epoch == [0, 1]


@pytest.mark.parametrize("verbose", ["auto", 1, 2])
def test_rank_0_alone_draws_a_progress_bar(
    verbose: Any, rank: int, exchange: Exchange, capsys: pytest.CaptureFixture[str]
) -> None:
    model = compiled(common.dense_model(seed=0))
    data = tf.data.Dataset.from_tensors(common.regression(4)).repeat(2)
    callbacks: list[Any] = [ringar.callbacks.Distributed()]
    if verbose == 1:  # one of the user's own, before the other ranks are silenced
        callbacks.insert(0, keras.callbacks.ProgbarLogger())
    capsys.readouterr()
    model.fit(data, epochs=2, verbose=verbose, callbacks=callbacks)
    printed = capsys.readouterr().out
    assert ("loss" in printed) == (rank == 0)
    assert ("Epoch 2/2" in printed) == (rank == 0)


# --- ranks that do not fit together, or have drifted apart: an error on each of them ---


@pytest.mark.ranks(2, 3, 4)
def test_other_models(rank: int) -> None:
    units = 4 if rank == 0 else 5
    model = compiled(keras.Sequential([keras.Input((6,)), keras.layers.Dense(units)]))
    x, _ = common.regression(4)
    data = tf.data.Dataset.from_tensors((x, np.zeros((4, units), np.float32)))
    with pytest.raises(ValueError, match=r"weight 0.*\[6, 4\].* \(rank 0\)"):
        model.fit(data, verbose=0, callbacks=[ringar.callbacks.Distributed()])
    if rank == 0:
        model = compiled(common.dense_model())
    else:
        model = compiled(keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match=r"number of weights.*4 \(rank 0\)"):
        model.fit(*common.regression(4), verbose=0, callbacks=[ringar.callbacks.Distributed()])


@pytest.mark.ranks(2, 3, 4)
def test_optimizer_that_reduces_nothing(rank: int) -> None:
    model = common.dense_model(seed=0)
    model.compile(SGD(0.1) if rank == 1 else ringar.DistributedOptimizer(SGD(0.1)), "mse")
    data = tf.data.Dataset.from_tensors(common.regression(4))
    with pytest.raises(ValueError, match=r"ringar.DistributedOptimizer.*no \(rank 1\)"):
        model.fit(data, verbose=0, callbacks=[ringar.callbacks.Distributed()])


@pytest.mark.ranks(2, 3, 4)
def test_learning_rates_that_differ(rank: int) -> None:
    class Slower(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.1 / (rank + 1)

    model = compiled(common.dense_model(seed=0))
    data = tf.data.Dataset.from_tensors(common.regression(4))
    callbacks = [Slower(), ringar.callbacks.Distributed()]
    with pytest.raises(
        ringar.errors.MismatchError, match=r"received 0.1 \(rank 0\), 0.05 \(rank 1\)"
    ):
        model.fit(data, verbose=0, callbacks=callbacks)


@pytest.mark.ranks(2, 3, 4)
def test_weights_that_differ(rank: int) -> None:
    class Apart(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if rank == 1:
                self.model.layers[-1].bias.assign([1.0])

    model = compiled(common.dense_model(seed=0))
    data = tf.data.Dataset.from_tensors(common.regression(4))
    callbacks = [ringar.callbacks.Distributed(), Apart()]
    with pytest.raises(
        ringar.errors.MismatchError, match=r"\| allgather .check of weights.*other values of .*bias"
    ):
        model.fit(data, verbose=0, callbacks=callbacks)


def test_train_step_of_ones_own(rank: int, exchange: Exchange) -> None:
    class Model(keras.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with ringar.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            grads = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(grads, self.trainable_variables)
            return {"loss": loss}

    model = Model(common.dense_model(seed=rank).layers)
    model.compile(SGD(0.1), "mse")
    shard = tf.data.Dataset.from_tensors(common.regression(4, seed=rank)).repeat(3)
    model.fit(shard, verbose=0, callbacks=[ringar.callbacks.Distributed()])
    assert len(set(exchange(common.digest(model)))) == 1


@pytest.mark.ranks(4)
def test_the_ranks_are_those_of_the_optimizer(rank: int, exchange: Exchange) -> None:
    sets = [ringar.add_process_set([0, 1]), ringar.add_process_set([2, 3])]
    model = common.dense_model(seed=rank)
    optimizer = ringar.DistributedOptimizer(SGD(0.1), process_set=sets[rank // 2])
    model.compile(optimizer, "mse")
    data = tf.data.Dataset.from_tensors(common.regression(4, rank))
    history = model.fit(data, verbose=0, callbacks=[ringar.callbacks.Distributed()]).history
    for number, (weights, losses) in enumerate(
        exchange(([v.tobytes() for v in common.values(model)], history["loss"]))
    ):
        is_ours = number // 2 == rank // 2
        assert (weights == [v.tobytes() for v in common.values(model)]) == is_ours
        assert (losses == history["loss"]) == is_ours
    for process_set in sets:
        ringar.remove_process_set(process_set)
