"""Horovod's callbacks: learning rates by its formulas, metrics, the best model, states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import ringar.horovod.tensorflow as hvd_tf
import ringar.horovod.tensorflow.keras as hvd
from ringar.horovod.keras import callbacks as plain_callbacks

pytestmark = pytest.mark.usefixtures("initialized")

STEPS = 3


class Rates(keras.callbacks.Callback):
    """Note the learning rate of each batch, and what the optimizer's velocity is multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.values.append(float(self.model.optimizer.learning_rate))


def fit(*callbacks: keras.callbacks.Callback, epochs: int, momentum: float = 0.0) -> Any:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    # Eager steps: tracing would take longer than all of them.
    model.compile(keras.optimizers.SGD(0.5, momentum=momentum), "mse", run_eagerly=True)
    x = np.ones((STEPS, 1), np.float32)
    options = {"batch_size": 1, "epochs": epochs, "verbose": 0}
    history = model.fit(x, x, callbacks=list(callbacks), validation_data=(x, x), **options)
    return model, history.history


def test_a_constant_multiplier_is_exponential_decay() -> None:
    schedule = hvd.callbacks.LearningRateScheduleCallback(
        0.5, multiplier=0.1, start_epoch=1, end_epoch=3, momentum_correction=False
    )
    _, history = fit(schedule, epochs=4)
    # Before its first epoch and behind its last one the rate stays.
    np.testing.assert_allclose(history["lr"], [0.5, 0.5, 0.05, 0.05], rtol=1e-6)
    np.testing.assert_allclose(history["learning_rate"], history["lr"])


def test_a_function_without_staircase_sees_fractions_of_epochs() -> None:
    epochs: list[float] = []

    def multiplier(epoch: float) -> float:
        epochs.append(epoch)
        return 1 / (1 + epoch)

    rates = Rates()
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.5, multiplier, staircase=False)
    fit(schedule, rates, epochs=2)
    expected = [epoch + batch / STEPS for epoch in range(2) for batch in range(STEPS)]
    np.testing.assert_allclose(epochs, expected)
    np.testing.assert_allclose(rates.values, [0.5 / (1 + e) for e in expected], rtol=1e-6)


def test_warm_up(capsys: pytest.CaptureFixture[str]) -> None:
    n, rates = hvd.size(), Rates()
    fit(hvd.callbacks.LearningRateWarmupCallback(0.5, warmup_epochs=2, verbose=1), rates, epochs=3)
    epochs = [epoch + (batch + 1) / STEPS for epoch in range(2) for batch in range(STEPS)]
    ramp = [0.5 / n * (epoch * (n - 1) / 2 + 1) for epoch in epochs]
    np.testing.assert_allclose(rates.values, ramp + [0.5] * STEPS, rtol=1e-6)
    is_printed = "Epoch 2: finished gradual learning rate warmup to 0.5." in capsys.readouterr().out
    assert is_printed is (hvd.rank() == 0)


def test_momentum_is_corrected() -> None:
    """By scaling the velocity, in effect Horovod's momentum * new / old for one step."""
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.5, lambda epoch: 0.1**epoch)
    model, _ = fit(schedule, epochs=2, momentum=0.9)
    w, velocity, old = 1.0, 0.0, 0.5
    model.set_weights([np.array([[w]], np.float32)])
    model.optimizer.learning_rate = old
    for slot in model.optimizer.momentums:
        slot.assign(slot * 0)
    x = np.ones((STEPS, 1), np.float32)
    model.fit(x, 0 * x, batch_size=1, epochs=2, verbose=0, callbacks=[schedule])
    for epoch in range(2):
        new = 0.5 * 0.1**epoch
        for batch in range(STEPS):
            momentum = 0.9 * new / old if batch == 0 else 0.9
            velocity = momentum * velocity - new * 2 * w
            w += velocity
            old = new
    np.testing.assert_allclose(model.get_weights()[0], [[w]], rtol=1e-4)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="`initial_lr` must be a number"):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected its attribute `filepath`"):
        fit(hvd.callbacks.BestModelCheckpoint(), epochs=1)


def test_metrics_are_averaged_and_weights_broadcast() -> None:
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse", run_eagerly=True)
    x = np.full((4, 2), 1 + hvd.rank(), np.float32)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(hvd.size() - 1, device="/cpu:0"),
        hvd.callbacks.MetricAverageCallback(device=""),
    ]
    history = model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=callbacks).history
    metrics = model.evaluate(x, x[:, :1], batch_size=4, verbose=0)
    of_ranks = hvd_tf.allgather_object((metrics, model.get_weights()))
    np.testing.assert_allclose(history["loss"], [np.mean([o for o, _ in of_ranks])], rtol=1e-5)
    for _, weights in of_ranks:
        np.testing.assert_array_equal(weights[0], of_ranks[-1][1][0])


def test_local_variables_are_not_broadcast() -> None:
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(2, use_bias=False), keras.layers.Dense(1)]
    )
    local_kernel, shared_kernel = (layer.kernel.numpy() for layer in model.layers)
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.0), local_layers=[model.layers[0]]
    )
    model.compile(optimizer, "mse", run_eagerly=True)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(
        0, local_variables=model.layers[0].trainable_weights
    )
    x = np.ones((2, 2), np.float32)
    model.fit(x, x[:, :1], batch_size=2, verbose=0, callbacks=[callback])
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), local_kernel)
    of_first = hvd_tf.broadcast_object(shared_kernel)
    np.testing.assert_array_equal(model.layers[1].kernel.numpy(), of_first)
    with pytest.raises(ValueError, match="expected variables of TensorFlow or Keras"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[x])


def test_the_best_model_is_saved(tmp_path: Path) -> None:
    checkpoint = plain_callbacks.BestModelCheckpoint(monitor="loss")
    checkpoint.filepath = str(tmp_path / "best.keras")
    _, history = fit(checkpoint, epochs=2)
    loaded = keras.models.load_model(checkpoint.filepath)
    assert checkpoint.best == min(history["loss"])
    assert int(loaded.optimizer.iterations) == STEPS * (1 + int(np.argmin(history["loss"])))
    weights = hvd.callbacks.BestModelCheckpoint("loss", save_weights_only=True)
    weights.filepath = str(tmp_path / "best.weights.h5")
    fit(weights, epochs=1)
    assert (tmp_path / "best.weights.h5").exists()


def test_states_follow_batches_and_epochs() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", run_eagerly=True)
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    places: list[tuple[int, int]] = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            places.append((state.epoch, state.batch))

    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        Watch(),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
    ]
    x = np.ones((STEPS, 1), np.float32)
    for _ in range(2):
        model.fit(x, x, batch_size=1, epochs=2, verbose=0, callbacks=callbacks)
    assert places == [(epoch, batch) for epoch in range(4) for batch in range(STEPS)]
    assert (state.epoch, state.batch) == (4, 0)
    committed = model.get_weights()
    model.set_weights([array + 1 for array in committed])
    state.epoch = 9
    state.restore()
    assert state.epoch == 4
    for array, other in zip(model.get_weights(), committed, strict=True):
        np.testing.assert_array_equal(array, other)
