"""Schedules that equal ordinary training: one module, and micro-batches on several."""

from __future__ import annotations

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
from tests.parallel.pipeline.comparison import assert_equal_modules
from tests.plugin import fast_if

pytestmark = [pytest.mark.usefixtures("initialized")]

TOLERANCE = 1e-5
layers = keras.layers


def ordinary(model: keras.Model, optimizer: Any, data: Any, **options: Any) -> Any:
    model.compile(optimizer, nets.loss(), metrics=["accuracy"])
    return one_process.fit(model, nets.dataset(data), **options)


@pytest.mark.ranks(1)
@pytest.mark.parametrize(
    "schedule", ["delayed", fast_if(False, "decoupled"), fast_if(False, "microbatch")]
)
def test_one_module_is_ordinary_training_bit_for_bit(schedule: str) -> None:
    data = nets.batches(10)
    reference = nets.residual()
    history = ordinary(reference, "adam", data, epochs=2, validation_data=data[0])
    model = Pipelined(nets.residual(), modules=1, schedule=schedule)
    model.compile("adam", nets.loss(), metrics=["accuracy"])
    result = model.fit(nets.dataset(data), epochs=2, validation_data=data[0], verbose=0).history
    assert result == history
    assert_all_close(model.weights, reference.weights)
    np.testing.assert_array_equal(
        model.predict(data[0][0], verbose=0), reference.predict(data[0][0], verbose=0)
    )


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("parts", [1, 4])
def test_microbatches_are_ordinary_training(open_grid: OpenGrid, size: int, parts: int) -> None:
    data = [*nets.batches(6), *nets.batches(1, rows=5)]  # the last batch is smaller
    kernel = {"kernel_regularizer": keras.regularizers.L2(0.01)}
    reference = nets.residual(**kernel)
    history = ordinary(reference, "adam", data, epochs=2, validation_data=data[-1])
    model = Pipelined(
        nets.residual(**kernel), schedule="microbatch", microbatches=parts,
        cuts=nets.CUTS[size], grid=open_grid(size),
    )  # fmt: skip
    model.compile("adam", nets.loss(), metrics=["accuracy"])
    result = model.fit(
        nets.dataset(data), epochs=2, validation_data=data[-1], verbose=0
    ).history  # fmt: skip
    assert set(result) == set(history)
    for name in history:
        np.testing.assert_allclose(result[name], history[name], rtol=1e-4, err_msg=name)
    assert_equal_modules(model, reference, TOLERANCE)


@pytest.mark.ranks(2, 4)
def test_sample_weights(open_grid: OpenGrid, size: int) -> None:
    (x, y), weights = nets.batches(1)[0], np.linspace(0.1, 2, nets.ROWS)
    reference = nets.residual()
    reference.compile("sgd", nets.loss(), weighted_metrics=["accuracy"])
    options: dict[str, Any] = {"sample_weight": weights, "batch_size": 6, "shuffle": False}
    one_process.fit(reference, x, y, **options)
    model = Pipelined(
        nets.residual(), schedule="microbatch", cuts=nets.CUTS[size], grid=open_grid(size)
    )
    model.compile("sgd", nets.loss(), weighted_metrics=["accuracy"])
    model.fit(x, y, verbose=0, **options)
    assert_equal_modules(model, reference, TOLERANCE)


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_one_module_with_replicas_is_data_parallelism(open_grid: OpenGrid, rank: int) -> None:
    data = nets.batches(6)
    reference = nets.residual()
    ordinary(reference, "adam", data)
    model = Pipelined(nets.residual(), grid=open_grid(1))
    model.compile("adam", nets.loss(), metrics=["accuracy"])
    half = slice(rank * 6, rank * 6 + 6)
    model.fit(nets.dataset([(x[half], y[half]) for x, y in data]), None, None, 1, 0, [])
    assert_equal_modules(model, reference, TOLERANCE)


@pytest.mark.ranks(2)
def test_a_module_without_weights(open_grid: OpenGrid) -> None:
    x, y = nets.batches(1)[0]

    def net() -> keras.Model:
        keras.utils.set_random_seed(4)
        image = keras.Input(nets.IMAGE)
        flat = layers.Flatten(name="flat")(layers.Rescaling(2.0, name="scaled")(image))
        return keras.Model(image, layers.Dense(nets.CLASSES, name="dense")(flat))

    reference, options = net(), {"batch_size": 4, "shuffle": False, "verbose": 0}
    reference.compile("adam", nets.loss())
    one_process.fit(reference, x, y, **options)
    model = Pipelined(net(), schedule="delayed", cuts=["flat"], grid=open_grid(2))
    model.compile("adam", nets.loss())
    model.fit(x, y, **options)
    merged = model.whole()
    assert_all_close(merged.weights, reference.weights, atol=TOLERANCE)
    assert int(merged.optimizer.iterations) == 3


@pytest.mark.ranks(4)
@pytest.mark.parametrize("schedule", ["delayed", fast_if(False, "microbatch")])
def test_replicas(open_grid: OpenGrid, schedule: str) -> None:
    """Two modules with two replicas each: the gradients are those of both halves of a batch."""
    grid = open_grid(2)
    data = nets.batches(12)
    reference = nets.residual()
    delays = [1, 0] if schedule == "delayed" else [0, 0]
    make = lambda: keras.optimizers.SGD(0.003, momentum=0.9)  # noqa: E731
    losses = nets.train_with_delays(reference, data, delays, make)
    half = slice(grid.group * 6, grid.group * 6 + 6)
    model = Pipelined(nets.residual(seed=7 + ringar.rank()), schedule=schedule,
                      cuts=nets.CUTS[2], grid=grid)  # fmt: skip
    model.set_weights(_own_weights(model))
    model.compile(make(), nets.loss())
    history = model.fit(nets.dataset([(x[half], y[half]) for x, y in data]), verbose=0)
    np.testing.assert_allclose(history.history["loss"], np.mean(losses), rtol=1e-4)
    assert_equal_modules(model, reference, TOLERANCE)


def _own_weights(model: Pipelined) -> list[np.ndarray]:
    """The first group's weights are those of the reference; the others must be given them."""
    if ringar.rank() >= 2:
        return model.get_weights()
    reference = nets.residual()
    return [
        np.array(weight)
        for layer in model.network.layers
        for weight in (reference.get_layer(layer.name).get_weights() if layer.weights else [])
    ]


def net() -> keras.Model:
    """A layer with moving statistics, and one more."""
    keras.utils.set_random_seed(4)
    x = layers.Flatten(name="flat")(image := keras.Input(nets.IMAGE))
    x = layers.BatchNormalization(momentum=0.5, name="norm")(x)
    return keras.Model(image, layers.Dense(nets.CLASSES, name="logits")(x))


@pytest.mark.ranks(4)
def test_moving_statistics_of_replicas_in_a_loop(open_grid: OpenGrid) -> None:
    """The first delayed step, after a batch or two, does not replace them by those of rank 0."""
    grid = open_grid(2)
    model = Pipelined(net(), grid=grid, cuts=["norm"])
    model.compile(keras.optimizers.SGD(0.0), nets.loss())
    expected = np.zeros(np.prod(nets.IMAGE))
    for x, y in nets.batches(4):
        model.train_on_batch(x + grid.group, y)
        expected = (expected + (x + grid.group).reshape(len(x), -1).mean(0)) / 2
    if grid.part == 0:
        statistics = model.network.get_layer("norm").moving_mean
        np.testing.assert_allclose(statistics, expected, atol=TOLERANCE)


@pytest.mark.every_variant
@pytest.mark.ranks(2, 4)
def test_replicas_combine_moving_statistics_and_compare_rates(
    open_grid: OpenGrid, rank: int, size: int
) -> None:
    class ChangeRate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.5 + grid.group

    data, grid = nets.batches(4), open_grid(size // 2)
    reference = net()
    ordinary(reference, keras.optimizers.SGD(0.0), data)
    model = Pipelined(net(), grid=grid, cuts=["norm"][: size // 2 - 1])
    model.compile(keras.optimizers.SGD(0.0), nets.loss())
    half = slice(grid.group * 6, grid.group * 6 + 6)
    share = nets.dataset([(x[half] + grid.group, y[half]) for x, y in data])
    history = model.fit(share, validation_data=nets.dataset(data), verbose=0).history
    merged = model.whole()
    means = merged.get_layer("norm").moving_mean - reference.get_layer("norm").moving_mean
    np.testing.assert_allclose(means, 0.5 * (1 - 0.5**4), atol=TOLERANCE)
    loss = model.evaluate(nets.dataset(data), verbose=0)
    assert ringar.allgather_object((loss, *history["val_loss"])) == [(loss, loss)] * size
    with pytest.raises(ringar.errors.MismatchError, match="same learning rate on all replicas"):
        model.fit(share, callbacks=[ChangeRate()], verbose=0)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("schedule", ["delayed", fast_if(False, "microbatch")])
def test_evaluate_and_predict_are_undelayed(open_grid: OpenGrid, size: int, schedule: str) -> None:
    data = nets.batches(5)
    model = Pipelined(nets.residual(), schedule=schedule, cuts=nets.CUTS[size],
                      grid=open_grid(size))  # fmt: skip
    model.compile("sgd", nets.loss(), metrics=["accuracy"])
    x, y = data[0]
    before = model.evaluate(x, y, batch_size=5, return_dict=True)  # names of metrics unknown yet
    model.fit(nets.dataset(data), verbose=0)
    merged = model.whole()
    for weights in (None, merged):
        reference = weights or nets.residual()
        if weights is None:
            reference.compile("sgd", nets.loss(), metrics=["accuracy"])
        expected = reference.evaluate(x, y, batch_size=5, return_dict=True, verbose=0)
        result = before if weights is None else model.evaluate(x, y, batch_size=5, return_dict=True)
        assert result == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(
        model.predict(x, batch_size=5), merged.predict(x, verbose=0), atol=TOLERANCE
    )
    np.testing.assert_allclose(model(x), merged(x), atol=TOLERANCE)


@pytest.mark.ranks(2, 3)
def test_several_inputs_and_outputs(open_grid: OpenGrid, size: int) -> None:
    """The last module reads the second input; what an output is made of crosses all cuts."""

    def net() -> keras.Model:
        keras.utils.set_random_seed(1)
        a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
        x = layers.Dense(6, activation="tanh", name="one")(a)
        early = layers.Dense(2, name="early")(x)
        x = layers.Dense(6, activation="tanh", name="two")(x)
        x = layers.Concatenate(name="both")([x, b])
        return keras.Model(
            {"a": a, "b": b}, {"early": early, "late": layers.Dense(1, name="late")(x)}
        )

    random = np.random.default_rng(0)
    x = {"a": random.normal(size=(12, 4)), "b": random.normal(size=(12, 3))}
    y = {"early": random.normal(size=(12, 2)), "late": random.normal(size=(12, 1))}
    settings: dict[str, Any] = {"loss": {"early": "mse", "late": "mae"}, "metrics": {"late": "mse"}}
    reference = net()
    reference.compile("sgd", **settings)
    history = one_process.fit(reference, x, y, batch_size=6, epochs=2, shuffle=False)
    model = Pipelined(net(), schedule="microbatch", microbatches=2,
                      cuts=["one", "two"][: size - 1], grid=open_grid(size))  # fmt: skip
    model.compile("sgd", **settings)
    result = model.fit(x, y, batch_size=6, epochs=2, shuffle=False, verbose=0).history
    assert set(result) == set(history)
    for name in history:
        np.testing.assert_allclose(result[name], history[name], rtol=1e-4, err_msg=name)
    assert_equal_modules(model, reference, TOLERANCE)
    predicted = model.predict(x)
    for name, values in reference.predict(x, verbose=0).items():
        np.testing.assert_allclose(predicted[name], values, atol=TOLERANCE)
