"""Saving, loading and resuming with another number of modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import ringar
from ringar.parallel import Pipelined
from tests import one_process
from tests.comparison import assert_all_close
from tests.parallel.conftest import OpenGrid
from tests.parallel.pipeline import nets
from tests.plugin import fast_if

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(2, 4)]

TOLERANCE = 1e-5


def pipelined(model: keras.Model, grid: Any, schedule: str = "microbatch") -> Pipelined:
    return Pipelined(model, schedule=schedule, cuts=nets.CUTS[grid.model], grid=grid)


@pytest.mark.parametrize(
    "optimizer", [fast_if(False, "adam"), fast_if(False, "nadam"), "adafactor"]
)
def test_a_saved_model_goes_on_with_another_number_of_modules(
    open_grid: OpenGrid, size: int, shared_tmp_path: Path, optimizer: str
) -> None:
    data = nets.batches(9)
    reference = nets.residual()
    reference.compile(optimizer, nets.loss())
    one_process.fit(reference, nets.dataset(data))
    model = pipelined(nets.residual(), open_grid(size))
    model.compile(optimizer, nets.loss())
    model.fit(nets.dataset(data[:5]), verbose=0)
    path = shared_tmp_path / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded) is type(nets.residual())
    assert int(loaded.optimizer.iterations) == 5
    other = pipelined(loaded, open_grid(2))
    other.fit(nets.dataset(data[5:]), verbose=0)  # compiled as it was
    assert_all_close(other.whole().weights, reference.weights, atol=TOLERANCE)


def test_weights_and_callbacks(open_grid: OpenGrid, size: int, shared_tmp_path: Path) -> None:
    """A checkpoint of the best weights, which all ranks write together; EarlyStopping."""
    data = nets.batches(4)
    model = pipelined(nets.residual(), open_grid(size), "delayed")
    model.compile("adam", nets.loss(), metrics=["accuracy"])
    path = shared_tmp_path / "best.weights.h5"
    callbacks = [
        keras.callbacks.ModelCheckpoint(path, monitor="val_loss", save_best_only=True,
                                        save_weights_only=True),
        keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True),
        ringar.callbacks.Distributed(),  # not needed, not harmful
    ]  # fmt: skip
    history = model.fit(
        nets.dataset(data), epochs=30, validation_data=nets.batches(1, seed=9)[0],
        callbacks=callbacks, verbose=0,
    ).history  # fmt: skip
    assert len(history["loss"]) < 30
    best = model.whole()
    fresh = pipelined(nets.residual(seed=8), model.grid)
    fresh.compile("adam", nets.loss())
    fresh.load_weights(path)
    assert_all_close(fresh.whole().weights, best.weights)


def test_saving_drops_what_is_in_flight_and_leaves_it_here(
    open_grid: OpenGrid, size: int, shared_tmp_path: Path
) -> None:
    data = nets.batches(8)
    weights = []
    for saves in (False, True):
        model = pipelined(nets.residual(), open_grid(size), "delayed")
        model.compile("sgd", nets.loss())
        model.fit(nets.dataset(data[:4]), verbose=0)
        if saves:
            model.save(shared_tmp_path / "model.keras")
        model.fit(nets.dataset(data[4:]), verbose=0)
        weights.append(model.get_weights())
    assert_all_close(*weights)


def test_a_file_that_cannot_be_written_is_every_ranks_error(
    open_grid: OpenGrid, size: int, tmp_path: Path
) -> None:
    model = pipelined(nets.residual(), open_grid(size))
    model.compile("sgd", nets.loss())
    with pytest.raises((OSError, ValueError)):
        model.save(tmp_path / "no" / "such" / "folder" / "model.keras")


@keras.saving.register_keras_serializable("other")
class Registered(keras.layers.Dense):
    """A layer of the user's own, registered."""


class Own(keras.layers.Dense):
    """And one that is not."""


def own_loss(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)


class OwnMetric(keras.metrics.Mean):
    """The mean of the outputs."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(y_pred)


def test_layers_losses_and_metrics_of_ones_own(open_grid: OpenGrid, size: int) -> None:
    x = inputs = keras.Input((4,))
    for i in range(size):
        x = (Own if i % 2 else Registered)(4, activation="tanh", name=f"dense{i}")(x)
    model = Pipelined(
        keras.Model(inputs, x), cuts=[f"dense{i}" for i in range(size - 1)], grid=open_grid(size)
    )
    model.compile("sgd", own_loss, metrics=[OwnMetric(name="mine"), "mse", "mae"])
    data = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
    model.fit(data, data, batch_size=4, verbose=0)
    merged = model.whole()
    assert type(merged.get_layer("dense1")) is Own
    # In the order of the metrics, on all ranks.
    expected = merged.evaluate(data, data, verbose=0)
    np.testing.assert_allclose(model.evaluate(data, data), expected, rtol=1e-4)


def test_results_of_several_outputs_are_in_the_order_of_keras(
    open_grid: OpenGrid, size: int
) -> None:
    x = inputs = keras.Input((4,))
    for i in range(size - 1):
        x = keras.layers.Dense(4, activation="tanh", name=f"dense{i}")(x)
    outputs = [keras.layers.Dense(4, name=name)(x) for name in "ba"]
    cuts = [f"dense{i}" for i in range(size - 1)]
    model = Pipelined(keras.Model(inputs, outputs), cuts=cuts, grid=open_grid(size))
    model.compile("sgd", ["mse", "mae"], metrics=[["mae", "cosine_similarity"], ["mse"]])
    data = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
    model.fit(data, (data, data), batch_size=4, verbose=0)
    merged = model.whole()
    for method in ("evaluate", "test_on_batch", "train_on_batch"):
        expected = getattr(merged, method)(data, (data, data))
        assert len({round(float(value), 4) for value in expected}) == len(expected) >= 4
        received = getattr(model, method)(data, (data, data))
        np.testing.assert_allclose(received, expected, rtol=1e-4, err_msg=method)


@keras.saving.register_keras_serializable(package="tests")
class WithHistory(keras.optimizers.SGD):
    """Has a variable that belongs to no weight, and is no number."""

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.history = self.add_variable((3,), name="history")


def test_an_optimizer_whose_state_cannot_be_told_apart_says_so(
    open_grid: OpenGrid, size: int
) -> None:
    model = pipelined(nets.residual(), open_grid(size))
    model.compile(WithHistory(0.01), nets.loss())
    model.fit(nets.dataset(nets.batches(2)), verbose=0)
    with pytest.warns(UserWarning, match="The state of WithHistory is not kept"):
        merged = model.whole()
    x, y = nets.batches(1)[0]
    assert np.isfinite(merged.train_on_batch(x, y))
