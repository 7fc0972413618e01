"""`delayed` and `decoupled` against the paper's update rule on one process."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.job import native
from ringar.parallel import Pipelined
from tests.interruption import StopOn
from tests.parallel.conftest import OpenGrid
from tests.parallel.pipeline import nets
from tests.parallel.pipeline.comparison import assert_equal_modules
from tests.plugin import fast_if
from tests.plugin.fixtures import restart

pytestmark = [pytest.mark.usefixtures("initialized")]

STEPS, TOLERANCE = 20, 1e-5

# Adam divides small gradients by their own size; `epsilon` keeps rounding from becoming an update.
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: keras.optimizers.SGD(0.003, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(2e-3, epsilon=1e-3),
}


class Losses(keras.callbacks.Callback):
    """What the module's metric was after each batch, and its weights before the first update."""

    def __init__(self) -> None:
        super().__init__()
        self.means: list[float] = []
        self.weights: list[list[np.ndarray]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.means.append(logs["loss"])
        self.weights.append([np.array(w) for w in self.model.get_weights()])


def delays_of(schedule: str, modules: int) -> list[int]:
    factor = {"delayed": 1, "decoupled": 2}[schedule]
    return [factor * (modules - 1 - k) for k in range(modules)]


def pipelined(grid: Any, schedule: str, optimizer: Any, **options: Any) -> Pipelined:
    model = Pipelined(
        nets.residual(**options.pop("kernel", {})), schedule=schedule, cuts=nets.CUTS[grid.model],
        grid=grid, **options,
    )  # fmt: skip
    model.compile(optimizer, nets.loss())
    return model


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("schedule", ["delayed", "decoupled"])
def test_is_the_papers_rule(open_grid: OpenGrid, size: int, schedule: str, optimizer: str) -> None:
    data = nets.batches(STEPS)
    reference = nets.residual()
    delays = delays_of(schedule, size)
    losses = nets.train_with_delays(reference, data, delays, OPTIMIZERS[optimizer])
    model = pipelined(open_grid(size), schedule, OPTIMIZERS[optimizer]())
    recorder = Losses()
    model.fit(nets.dataset(data), callbacks=[recorder], verbose=0)
    assert model.staleness == delays[model.module] == model.in_flight
    assert_equal_modules(model, reference, TOLERANCE)
    # A module sees the metrics of the batch whose gradient it has just applied.
    means = np.cumsum(losses) / np.arange(1, STEPS + 1)
    delayed_steps = [max(0, t - model.staleness) for t in range(STEPS)]
    np.testing.assert_allclose(recorder.means, means[delayed_steps], rtol=1e-4)
    assert losses[-1] < losses[0]


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("optimizer", [fast_if(False, "momentum"), "adam"])
def test_compiled_with_xla(open_grid: OpenGrid, size: int, optimizer: str) -> None:
    """An update must not overwrite weights that a batch in flight has met."""
    data, make = nets.batches(STEPS), OPTIMIZERS[optimizer]
    reference = nets.residual()
    nets.train_with_delays(reference, data, delays_of("decoupled", size), make)
    model = Pipelined(
        nets.residual(), schedule="decoupled", cuts=nets.CUTS[size], grid=open_grid(size)
    )
    model.compile(make(), nets.loss(), jit_compile=True)
    model.fit(nets.dataset(data), verbose=0)
    assert_equal_modules(model, reference, TOLERANCE)


@pytest.mark.ranks(2, 4)
def test_the_first_steps_change_nothing(open_grid: OpenGrid, size: int) -> None:
    model = pipelined(open_grid(size), "delayed", OPTIMIZERS["adam"]())
    before = [np.array(w) for w in model.get_weights()]
    losses = Losses()
    model.fit(nets.dataset(nets.batches(size + 1)), callbacks=[losses], verbose=0)
    for step, weights in enumerate(losses.weights):
        same = all((a == b).all() for a, b in zip(before, weights, strict=True))
        assert same == (step < model.staleness) or not before, step
    assert int(model.optimizer.iterations) == size + 1 - model.staleness


@pytest.mark.ranks(2, 3)
def test_penalties_and_shrinking(open_grid: OpenGrid, size: int) -> None:
    """Regularizers of all modules count, in the loss that is shown and in the gradients."""
    kernel = {"kernel_regularizer": keras.regularizers.L2(0.01)}
    data = nets.batches(STEPS)
    reference = nets.residual(**kernel)
    make = OPTIMIZERS["momentum"]
    losses = nets.train_with_delays(
        reference, data, delays_of("decoupled", size), make, shrinking=0.8
    )
    model = pipelined(open_grid(size), "decoupled", make(), shrinking=0.8, kernel=kernel)
    history = model.fit(nets.dataset(data), verbose=0)
    assert_equal_modules(model, reference, TOLERANCE)
    np.testing.assert_allclose(history.history["loss"], np.mean(losses), rtol=1e-4)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("schedule", ["delayed", fast_if(False, "decoupled")])
def test_epochs_and_fits_do_not_interrupt_it(open_grid: OpenGrid, size: int, schedule: str) -> None:
    """Evaluation between epochs, and a second `fit`, find what is in flight and leave it there."""
    data = nets.batches(STEPS)
    reference = nets.residual()
    make = OPTIMIZERS["momentum"]
    nets.train_with_delays(reference, data, delays_of(schedule, size), make)
    model = pipelined(open_grid(size), schedule, make())
    for part in (data[:7], data[7:12], data[12:]):
        model.fit(nets.dataset(part), validation_data=nets.batches(1)[0], verbose=0)
    assert_equal_modules(model, reference, TOLERANCE)


@pytest.mark.slow
@pytest.mark.ranks(2, 3)
def test_models_in_turns_do_not_disturb_each_other(open_grid: OpenGrid, size: int) -> None:
    """Nor do messages of the program's own, while batches are in flight."""
    data, grid, make = nets.batches(STEPS), open_grid(size), OPTIMIZERS["momentum"]
    schedules = ("delayed", "decoupled")
    models = [pipelined(grid, schedule, make()) for schedule in schedules]
    for part in (data[:7], data[7:]):
        for model in models:
            model.fit(nets.dataset(part), verbose=0)
        if ringar.rank() == size - 1:
            ringar.send(np.float32(len(part)), 0, name="own")
        if ringar.rank() == 0:
            assert ringar.recv(tf.TensorSpec([]), size - 1, name="own").numpy() == len(part)
    for model, schedule in zip(models, schedules, strict=True):
        assert model.in_flight == model.staleness
        reference = nets.residual()
        nets.train_with_delays(reference, data, delays_of(schedule, size), make)
        assert_equal_modules(model, reference, TOLERANCE)


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_what_a_model_has_left_in_flight_is_forgotten_with_it(
    open_grid: OpenGrid, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[tuple[int, int]] = []
    gc.collect()
    monkeypatch.setattr(native, "forget_messages", lambda *stream: forgotten.append(stream))
    model = pipelined(open_grid(size), "decoupled", "sgd")
    model.fit(nets.dataset(nets.batches(3)), verbose=0)
    model.compile("sgd", nets.loss())  # empties the pipeline
    gc.collect()
    assert [source for source, _ in forgotten] == [1 - ringar.rank()]
    assert model.in_flight == 0
    model.fit(nets.dataset(nets.batches(3)), verbose=0)
    restart()  # no message is left, and no tag stands for what it stood for
    model.fit(nets.dataset(nets.batches(1)), verbose=0)
    assert model.in_flight == min(1, model.staleness)
    gc.collect()
    assert len(forgotten) == 1


@pytest.mark.ranks(2)
@pytest.mark.parametrize("jit_compile", [False, fast_if(False, True)])
def test_a_run_is_deterministic(open_grid: OpenGrid, size: int, jit_compile: bool) -> None:
    runs = []
    grid = open_grid(size)
    for _ in range(2):
        model = Pipelined(nets.residual(), schedule="delayed", cuts=nets.CUTS[size], grid=grid)
        model.compile("adam", nets.loss(), jit_compile=jit_compile)
        x, y = (np.concatenate(arrays) for arrays in zip(*nets.batches(6), strict=True))
        history = model.fit(x, y, batch_size=nets.ROWS, epochs=2, verbose=0)
        runs.append((history.history["loss"], model.get_weights()))
    assert runs[0][0] == runs[1][0]
    for first, second in zip(runs[0][1], runs[1][1], strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.ranks(2, 3)
def test_draining_applies_what_is_in_flight(open_grid: OpenGrid, size: int) -> None:
    data = nets.batches(5)
    model = pipelined(open_grid(size), "delayed", OPTIMIZERS["momentum"]())
    model.fit(nets.dataset(data), verbose=0)
    assert model.in_flight == model.staleness
    model.drain()
    assert model.in_flight == 0
    assert int(model.optimizer.iterations) == len(data)
    model.fit(nets.dataset(data), verbose=0)  # and goes on
    assert int(model.optimizer.iterations) == 2 * len(data) - model.staleness


@pytest.mark.ranks(2, 3)
def test_schedules_of_the_learning_rate_follow_each_modules_own_steps(
    open_grid: OpenGrid, size: int
) -> None:
    def make() -> Any:
        return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.01, 30))

    data = nets.batches(STEPS)
    reference = nets.residual()
    nets.train_with_delays(reference, data, delays_of("delayed", size), make)
    model = pipelined(open_grid(size), "delayed", make())
    model.fit(nets.dataset(data[:10]), verbose=0)
    model.fit(nets.dataset(data[10:]), verbose=0)
    assert_equal_modules(model, reference, TOLERANCE)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("schedule", ["delayed", "microbatch"])
def test_a_rank_that_wants_to_stop_stops_all_after_the_epoch(
    open_grid: OpenGrid, size: int, schedule: str
) -> None:
    data = nets.batches(6)
    model = pipelined(open_grid(size), schedule, "sgd")
    callbacks = [StopOn(size - 1), ringar.callbacks.Distributed()]
    history = model.fit(nets.dataset(data), epochs=4, callbacks=callbacks, verbose=0)
    assert len(history.history["loss"]) == 1
    history = model.fit(nets.dataset(data), epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2
