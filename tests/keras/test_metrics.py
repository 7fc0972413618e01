"""Metrics over the data of all ranks, against one process with the batches of all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests import one_process
from tests.keras import common
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

M = keras.metrics
Exchange = Callable[[Any], list[Any]]
Batch = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]

#: Outputs, and the metrics that take them.
METRICS: dict[str, Callable[[], list[Any]]] = {
    "classes": lambda: [
        M.CategoricalAccuracy(),
        M.TopKCategoricalAccuracy(k=2),
        M.CategoricalCrossentropy(),
        M.CategoricalHinge(),
        M.KLDivergence(),
        M.F1Score(average="macro"),
        M.FBetaScore(average=None, beta=2.0),
        M.OneHotIoU(num_classes=3, target_class_ids=[0, 2]),
        M.OneHotMeanIoU(num_classes=3),
        M.AUC(multi_label=True, num_labels=3, num_thresholds=20),
        M.MeanMetricWrapper(lambda y, p: tf.reduce_max(tf.abs(y - p), axis=-1)),
    ],
    "sparse": lambda: [
        M.SparseCategoricalAccuracy(),
        M.SparseTopKCategoricalAccuracy(k=2),
        M.SparseCategoricalCrossentropy(),
    ],
    "binary": lambda: [
        M.BinaryAccuracy(),
        M.BinaryCrossentropy(),
        M.BinaryIoU(),
        M.AUC(num_thresholds=50, curve="PR"),
        M.F1Score(threshold=0.5, name="f1_of_one_output"),
        M.FBetaScore(beta=2.0, threshold=0.5, name="f2_of_one_output"),
        M.FalseNegatives(),
        M.FalsePositives(),
        M.TrueNegatives(),
        M.TruePositives(),
        M.Precision(thresholds=[0.2, 0.6]),
        M.Recall(),
        M.PrecisionAtRecall(0.5),
        M.RecallAtPrecision(0.5),
        M.SensitivityAtSpecificity(0.5),
        M.SpecificityAtSensitivity(0.5),
        M.Hinge(),
        M.SquaredHinge(),
    ],
    "values": lambda: [
        M.MeanSquaredError(),
        M.RootMeanSquaredError(),
        M.MeanAbsoluteError(),
        M.MeanAbsolutePercentageError(),
        M.MeanSquaredLogarithmicError(),
        M.CosineSimilarity(),
        M.LogCoshError(),
        M.Poisson(),
        M.R2Score(),
        M.PearsonCorrelation(),
        M.ConcordanceCorrelation(),
    ],
    "identities": lambda: [
        M.Accuracy(),
        M.IoU(num_classes=4, target_class_ids=[1, 3]),
        M.MeanIoU(num_classes=4),
    ],
}


def examples(rows: int) -> Batch:
    """Predictions, which the model passes on, and targets; the same on every rank."""
    rng = np.random.default_rng(rows)
    logits = rng.normal(size=(rows, 3))
    classes = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    predictions = {
        "classes": classes,
        "sparse": classes,
        "binary": rng.uniform(size=(rows, 1)),
        "values": rng.uniform(0.1, 2.0, size=(rows, 4)),
        "identities": rng.integers(0, 4, size=(rows, 1)),
    }
    targets = {
        "classes": np.eye(3)[rng.integers(0, 3, size=rows)],
        "sparse": rng.integers(0, 3, size=(rows, 1)),
        "binary": rng.integers(0, 2, size=(rows, 1)),
        "values": rng.uniform(0.1, 2.0, size=(rows, 4)),
        "identities": rng.integers(0, 4, size=(rows, 1)),
    }
    return tuple(  # type: ignore[return-value]
        {key: np.asarray(value, np.float32) for key, value in part.items()}
        for part in (predictions, targets)
    )


class Scale(keras.layers.Layer):
    """A weight of one, so that there is something to train."""

    def build(self, shape: Any) -> None:
        self.factor = self.add_weight(shape=(), initializer="ones")

    def call(self, inputs: Any) -> Any:
        return inputs * self.factor


class Passing(keras.Model):
    """Passes its inputs on, and keeps metrics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale()
        self.total, self.average = M.Sum(name="total"), M.Mean(name="average")

    def call(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.total.update_state(inputs["values"])
        self.average.update_state(inputs["values"], sample_weight=inputs["binary"])
        return {**inputs, "values": self.scale(inputs["values"])}


def passing_model() -> keras.Model:
    model = Passing()
    losses = {"classes": "categorical_crossentropy", "values": "mse"}
    metrics = {output: make() for output, make in METRICS.items()}
    for metric in itertools.chain(*metrics.values()):
        if not metric.name.endswith("_output"):
            metric.name = type(metric).__name__  # which Keras would number
    # A learning rate of zero: training and evaluation have the same metrics.
    optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(0.0))
    # Tracing so many metrics takes longer than these few steps.
    model.compile(optimizer, losses, metrics=metrics, run_eagerly=True)
    return model


def in_batches(data: Any, sizes: list[int]) -> tf.data.Dataset:
    """Batches of these numbers of rows; none of them, if there are none."""
    stops = np.cumsum(sizes)
    spec = tf.nest.map_structure(lambda a: tf.TensorSpec((None, *a.shape[1:]), a.dtype), data)

    def generate() -> Any:
        for start, stop in zip(stops - sizes, stops, strict=True):
            yield part(data, slice(start, stop))

    return tf.data.Dataset.from_generator(generate, output_signature=spec)


def part(data: Any, rows: slice) -> Any:
    return tf.nest.map_structure(lambda array: array[rows], data)


def assert_same(received: dict[str, Any], expected: dict[str, Any]) -> None:
    assert received.keys() == expected.keys()
    for key, value in expected.items():
        assert np.shape(received[key]) == np.shape(value), key
        np.testing.assert_allclose(received[key], value, rtol=1e-6, atol=1e-6, err_msg=key)


def test_that_all_metrics_of_keras_are_tried() -> None:
    tested_classes = {type(metric) for make in METRICS.values() for metric in make()}
    classes = {
        value
        for name in dir(M)
        if isinstance(value := getattr(M, name), type) and issubclass(value, M.Metric)
    }
    assert classes - {M.Metric} == tested_classes | {M.Sum, M.Mean}


@pytest.mark.ranks(2, 3, 4)
def test_all_metrics_of_keras(rank: int, size: int, exchange: Exchange) -> None:
    """An epoch, its validation, and an evaluation, on ranks with other numbers of rows."""
    rows = [[7, 4], [3, 6], [1, 9], [8, 2]][:size]
    starts = np.cumsum([0, *(sum(sizes) for sizes in rows)])
    data = examples(int(starts[-1]))
    shard = part(data, slice(starts[rank], starts[rank + 1]))
    # In the validation rank 1 has no batch.
    validation = [[5, 7, 3], [], [6], [2, 2]][:size]
    counts = [sum(sizes) for sizes in validation]
    val_starts = np.cumsum([0, *counts])
    val_data = examples(int(val_starts[-1]))
    own_val = part(val_data, slice(val_starts[rank], val_starts[rank + 1]))

    model = passing_model()
    distributed = ringar.callbacks.Distributed()
    options: dict[str, Any] = {"verbose": 0, "callbacks": [distributed]}
    history = model.fit(
        in_batches(shard, rows[rank]),
        epochs=2,
        validation_data=in_batches(own_val, validation[rank]),
        **options,
    )
    evaluated = model.evaluate(in_batches(shard, rows[rank]), return_dict=True, **options)
    fresh = passing_model().evaluate(in_batches(own_val, validation[rank]), **options)

    of_all = in_batches(data, [*itertools.chain(*rows)])
    val_of_all = in_batches(val_data, [*itertools.chain(*validation)])
    expected, expected_val, in_order = one_process.compute(
        lambda: [
            model.evaluate(of_all, return_dict=True, verbose=0),
            model.evaluate(val_of_all, return_dict=True, verbose=0),
            model.evaluate(val_of_all, verbose=0),
        ]
    )
    assert_same(evaluated, expected)
    for epoch in range(2):
        logs = {key: values[epoch] for key, values in history.history.items()}
        assert_same(logs, {**expected, **{f"val_{k}": v for k, v in expected_val.items()}})
    for received, value in zip(fresh, in_order, strict=True):
        assert np.shape(received) == np.shape(value)
        np.testing.assert_allclose(received, value, rtol=1e-6, atol=1e-6)
    assert len({str(logs) for logs in exchange((evaluated, fresh))}) == 1


def test_example_of_uneven_batches(rank: int, size: int) -> None:
    """100 examples, of which each rank evaluates a share in batches of 32."""
    data = common.regression(100)
    shard = part(data, slice(100 * rank // size, 100 * (rank + 1) // size))
    model = common.dense_model()
    metrics = [M.RootMeanSquaredError(name="rmse"), M.F1Score(name="f1", average=None)]
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", metrics=metrics)
    single = model.evaluate(*data, batch_size=32, verbose=0)
    options: dict[str, Any] = {"verbose": 0, "callbacks": [ringar.callbacks.Distributed()]}
    received = model.evaluate(*shard, batch_size=32, **options)
    for value, expected in zip(received, single, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)
    # Kept as it was: Keras goes on with the state of this rank.
    again = model.evaluate(*shard, batch_size=32, verbose=0)
    assert (again[0] == pytest.approx(single[0], rel=1e-6)) == (size == 1)


def test_training_as_in_one_process(rank: int, size: int) -> None:
    """Training with a second epoch that is evaluated, on ranks with other numbers of rows."""
    data, val = common.regression(48), common.regression(41)
    own_val = part(val, slice(41 * rank // size, 41 * (rank + 1) // size))
    histories = []
    for distributed in (False, True):
        model = common.dense_model()
        optimizer: Any = keras.optimizers.SGD(0.1)
        if distributed:
            optimizer = ringar.DistributedOptimizer(optimizer)
        model.compile(optimizer, "mse", metrics=[M.RootMeanSquaredError(name="rmse"), M.R2Score()])
        history = model.fit(
            common.own_batches(data) if distributed else common.batches(data),
            epochs=2,
            validation_data=own_val if distributed else val,
            validation_freq=2,
            callbacks=[ringar.callbacks.Distributed()] if distributed else [],
            verbose=0,
        )
        histories.append({key: np.array(values) for key, values in history.history.items()})
    assert_same(histories[1], histories[0])


@pytest.mark.parametrize("jit_compile", [False, fast_if(False, True)])
def test_losses_and_metrics_of_each_output(jit_compile: bool, rank: int, size: int) -> None:
    """In training; in batches of one size, for Keras averages these losses over batches."""
    x, y = common.regression(48)
    targets = {"single": y, "double": 2 * y}
    data = tf.data.Dataset.from_tensor_slices((x, targets))

    def trained(optimizer: Any, batches: Any, callbacks: Any) -> dict[str, list[float]]:
        keras.utils.set_random_seed(0)
        inputs = keras.Input((6,))
        outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in targets}
        model = keras.Model(inputs, outputs)
        metrics = {"single": ["mae"], "double": [M.RootMeanSquaredError(name="rmse")]}
        losses = {"single": "mse", "double": "mae"}
        model.compile(optimizer, losses, metrics=metrics, jit_compile=jit_compile)
        options: dict[str, Any] = {"epochs": 2, "verbose": 0, "callbacks": callbacks}
        return model.fit(batches, validation_data=batches, **options).history

    expected = one_process.compute(
        lambda: trained(keras.optimizers.SGD(0.1), data.batch(common.GLOBAL_BATCH), [])
    )
    received = trained(
        ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)),
        ringar.data.shard(data).batch(common.GLOBAL_BATCH // size),
        [ringar.callbacks.Distributed()],
    )
    for name in ("loss", "single_loss", "double_loss", "single_mae", "double_rmse"):
        assert {name, f"val_{name}"} <= received.keys()
    assert received.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(received[key], values, rtol=1e-5, err_msg=key)


class Largest(keras.metrics.Metric):
    """A running maximum of the targets: its state is no sum."""

    def __init__(self, aggregation: str = "sum", dtype: str = "float32") -> None:
        super().__init__(name="largest")
        kind = {"aggregation": aggregation, "dtype": dtype}
        self.value = self.add_variable((), "zeros", name="value", **kind)
        self.count = self.add_variable((), "zeros", name="count", dtype="int32")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        largest = tf.maximum(tf.cast(self.value.value, tf.float32), tf.reduce_max(y))
        self.value.assign(tf.cast(largest, self.value.dtype))
        self.count.assign_add(tf.shape(y)[0])

    def result(self) -> Any:
        return {"largest": self.value, "rows": self.count}


class Combining(Largest):
    def combine_states(self, states: list[np.ndarray]) -> list[np.ndarray]:
        values, counts = states
        return [values.max(), counts.sum()]


class Rate(keras.metrics.Metric):
    """A number without a state, another one on each rank."""

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        pass

    def result(self) -> Any:
        return float(ringar.rank())


class Named(keras.Sequential):
    """Reports a metric by another name than its own, and a number of no metric."""

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        self._loss_tracker.update_state(self.compute_loss(x, y, self(x)), tf.shape(x)[0])
        return {"objective": self._loss_tracker.result(), "rank": float(ringar.rank())}


def test_metrics_of_ones_own(rank: int, size: int, caplog: pytest.LogCaptureFixture) -> None:
    data = common.regression(6 * size + 5)
    shard = part(data, slice(6 * rank, None if rank == size - 1 else 6 * rank + 6))
    layers = common.dense_model().layers
    options: dict[str, Any] = {"verbose": 0, "callbacks": [ringar.callbacks.Distributed()]}

    def evaluate(model: keras.Model, metrics: list[Any], where: Any = shard) -> dict[str, Any]:
        model.compile(loss="mse", metrics=metrics or None)
        return model.evaluate(*where, return_dict=True, **options)

    received = evaluate(keras.Sequential(layers), [Combining()])
    loss = received.pop("loss")
    assert received == {"largest": float(data[1].max()), "rows": 6 * size + 5}
    for _ in range(2):
        named = {name: float(value) for name, value in evaluate(Named(layers), []).items()}
        assert named == {"objective": pytest.approx(loss, rel=1e-6), "rank": (size - 1) / 2}
    warned = [record.args for record in caplog.records if "no metric" in record.message]
    assert warned == ([("rank",)] if size > 1 and ringar.rank() == 0 else [])
    if size > 1:
        with pytest.raises(ringar.errors.UnsupportedError, match=r"'rate' .* variables 0\.0, 1\.0"):
            evaluate(keras.Sequential(layers), [Rate(name="rate")])
        refusals = [{"aggregation": "only_first_replica"}, {"dtype": "bool"}]
        if keras.Variable(0.0).aggregation != "mean":  # which says nothing where it is the default
            refusals.append({"aggregation": "mean"})
        for refused in refusals:
            with pytest.raises(ringar.errors.UnsupportedError, match="'value'.*combine_states"):
                evaluate(keras.Sequential(layers), [Largest(**refused)])
        model = keras.Sequential(layers)
        optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(0.1))
        model.compile(optimizer, "mse", metrics=[Largest("only_first_replica")])
        with pytest.raises(ringar.errors.UnsupportedError, match="only_first_replica"):
            model.fit(in_batches(data, [2, 2, 2]), **options)
        assert optimizer.iterations.numpy() == 1  # and not at the end of the epoch
        with pytest.raises(ringar.errors.MismatchError, match="metric 'mae:1' on every rank"):
            evaluate(keras.Sequential(layers), ["mse"] if rank else ["mse", "mae"])


@pytest.mark.ranks(2, 4)
def test_ranks_of_a_model_group_have_the_same_examples() -> None:
    grid = ringar.parallel.Grid(model=2)
    data = common.regression(5 * grid.data)
    shard = part(data, slice(5 * grid.group, 5 * grid.group + 5))
    model = common.dense_model()
    optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(0.1), grid=grid)
    model.compile(optimizer, "mse", metrics=[Largest()])
    received = model.evaluate(
        *shard, return_dict=True, verbose=0, callbacks=[ringar.callbacks.Distributed()]
    )
    assert received["rows"] == 5 * grid.data
    grid.close()
