"""The learning rate callbacks: the values that Horovod documents, and momentum correction."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.keras import common

pytestmark = pytest.mark.usefixtures("initialized")

STEPS = 4


class Rates(keras.callbacks.Callback):
    """Keeps the learning rate of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.rates.append(common.number(self.model.optimizer.learning_rate))


def fit(callbacks: list[Any], epochs: int, optimizer: Any = None) -> tuple[Any, Rates]:
    model = common.dense_model(seed=0)
    optimizer = optimizer or keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(ringar.DistributedOptimizer(optimizer), "mse")
    data = tf.data.Dataset.from_tensors(common.regression(4)).repeat(STEPS)
    rates = Rates()
    history = model.fit(data, epochs=epochs, verbose=0, callbacks=[*callbacks, rates])
    return history, rates


def test_warmup(size: int, rank: int, capsys: pytest.CaptureFixture[str]) -> None:
    warmup = ringar.callbacks.LearningRateWarmupCallback(0.5, warmup_epochs=2, verbose=1)
    history, rates = fit([warmup], epochs=3)
    progress = np.minimum((np.arange(3 * STEPS) + 1) / (2 * STEPS), 1.0)
    np.testing.assert_allclose(rates.rates, 0.5 / size * (1 + progress * (size - 1)), rtol=1e-6)
    assert history.history["learning_rate"] == pytest.approx(rates.rates[STEPS - 1 :: STEPS])
    assert ("finished gradual" in capsys.readouterr().out) == (rank == 0)


@pytest.mark.ranks(2, 4)
def test_warmup_on_a_grid(size: int) -> None:
    """The global batch grows with the number of model groups, or with the process set."""
    grid = ringar.parallel.Grid(model=2)
    for groups, options in ((size // 2, {"grid": grid}), (2, {"process_set": grid.model_set})):
        model = common.dense_model(seed=0)
        model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1), **options), "mse")
        warmup = ringar.callbacks.LearningRateWarmupCallback(0.5, warmup_epochs=1)
        rates = Rates()
        data = tf.data.Dataset.from_tensors(common.regression(4)).repeat(STEPS)
        model.fit(data, verbose=0, callbacks=[warmup, rates])
        progress = (np.arange(STEPS) + 1) / STEPS
        expected = 0.5 / groups * (1 + progress * (groups - 1))
        np.testing.assert_allclose(rates.rates, expected, rtol=1e-6)
    grid.close()


def test_schedule_of_constants() -> None:
    schedule = ringar.callbacks.LearningRateScheduleCallback
    callbacks = [
        schedule(0.5, 1.0, end_epoch=1),
        schedule(initial_lr=0.5, multiplier=0.1, start_epoch=1, end_epoch=3),
        schedule(initial_lr=0.5, multiplier=0.01, start_epoch=3),
    ]
    _, rates = fit(callbacks, epochs=5)
    np.testing.assert_allclose(rates.rates[::STEPS], [0.5, 0.05, 0.05, 0.005, 0.005], rtol=1e-6)


def test_schedule_by_function() -> None:
    schedule = ringar.callbacks.LearningRateScheduleCallback
    _, rates = fit([schedule(0.5, lambda epoch: 0.5**epoch)], epochs=2)
    np.testing.assert_allclose(rates.rates, [0.5] * STEPS + [0.25] * STEPS, rtol=1e-6)
    _, rates = fit([schedule(0.5, lambda epoch: 0.5**epoch, staircase=False)], epochs=2)
    np.testing.assert_allclose(rates.rates, 0.5 ** (1 + np.arange(8) / STEPS), rtol=1e-6)


@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        lambda: keras.optimizers.RMSprop(0.1, momentum=0.9),
    ],
    ids=["sgd", "rmsprop"],
)
def test_momentum_correction(make: Any, correction: bool) -> None:
    optimizer = ringar.DistributedOptimizer(make())
    variable = keras.Variable([1.0])
    optimizer.apply([tf.constant([1.0])], [variable])
    velocity = (getattr(optimizer, "momentums", None) or optimizer._momentums)[0]
    before = common.number(velocity[0])
    schedule = ringar.callbacks.LearningRateScheduleCallback(
        0.1, 0.25, momentum_correction=correction
    )
    model = keras.Sequential([keras.Input((1,))])
    model.optimizer = optimizer
    schedule.set_model(model)
    schedule.on_epoch_begin(0)
    assert common.number(optimizer.learning_rate) == pytest.approx(0.025)
    assert common.number(velocity[0]) == pytest.approx(before * (0.25 if correction else 1.0))


def test_loss_scale_optimizer_has_the_learning_rate_inside() -> None:
    inner = keras.optimizers.SGD(0.1, momentum=0.9)
    schedule = ringar.callbacks.LearningRateScheduleCallback(0.5, 1.0)
    _, rates = fit([schedule], epochs=1, optimizer=keras.optimizers.LossScaleOptimizer(inner))
    assert rates.rates == [0.5] * STEPS


def test_refusals() -> None:
    schedule = ringar.callbacks.LearningRateScheduleCallback
    with pytest.raises(ValueError, match="`initial_lr` must be a number"):
        schedule(None, 1.0)  # type: ignore[arg-type]
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    with pytest.raises(ValueError, match="needs an optimizer whose learning rate is a number"):
        fit([schedule(0.1, 1.0)], epochs=1, optimizer=keras.optimizers.SGD(decay))
    warmup = ringar.callbacks.LearningRateWarmupCallback(0.1)
    warmup.set_params({"steps": None, "verbose": 0})
    warmup.set_model(compiled())
    with pytest.raises(ValueError, match="`steps_per_epoch` must be given"):
        warmup.on_train_begin()


def compiled() -> keras.Model:
    model = common.dense_model()
    model.compile("sgd", "mse")
    return model
