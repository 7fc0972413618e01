"""Ranks with batches of different sizes, and of different numbers, against one process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import ringar
from tests import one_process
from tests.keras import common, uneven
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

Exchange = Callable[[Any], list[Any]]


def plain(rows: int, seed: int) -> uneven.Batch:
    return common.regression(rows, seed)


def weighted(rows: int, seed: int) -> uneven.Batch:
    """Weights, some of them zero."""
    weights = np.maximum(np.random.default_rng(seed).uniform(-0.5, 2, rows), 0).astype(np.float32)
    return (*common.regression(rows, seed), weights)


def words(rows: int, seed: int) -> uneven.Batch:
    """Tokens, of which 0 is masked, and a target for each."""
    tokens = np.random.default_rng(seed).integers(0, 6, (rows, 4)).astype(np.int32)
    return tokens, np.cos(tokens[:, :, None]).astype(np.float32)


def weighted_words(rows: int, seed: int) -> uneven.Batch:
    """Tokens and targets, and a weight for each token."""
    weights = np.random.default_rng(seed).uniform(0.1, 2, (rows, 4)).astype(np.float32)
    return (*words(rows, seed), weights)


def masked_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(6, 3, mask_zero=True),
            keras.layers.Dense(1),
        ]
    )


def two_outputs() -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(4, activation="tanh", kernel_regularizer="l2")(inputs)
    outputs = [keras.layers.Dense(1, name=name)(hidden) for name in ("a", "b")]
    return keras.Model(inputs, outputs)


MSE, MAE = keras.losses.MeanSquaredError, keras.losses.MeanAbsoluteError


def check(
    size: int,
    rank: int,
    build: Callable[[], keras.Model],
    make: Callable[[int, int], uneven.Batch],
    **options: Any,
) -> keras.Model:
    """Train on the ranks and in one process; compare losses, weights and optimizers' state."""
    batches = uneven.batches_of(size, make)
    model, history = uneven.train(build, batches[rank], distributed=True, **options)
    single, expected = uneven.train(build, uneven.together(batches), distributed=False, **options)
    assert history["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert common.largest_difference(common.values(model), common.values(single)) < 2e-5
    state = [v for v in model.optimizer.variables if "learning" not in v.path]
    answers = [v for v in single.optimizer.variables if "learning" not in v.path]
    for variable, other in zip(state, answers, strict=True):
        np.testing.assert_allclose(variable.numpy(), other.numpy(), atol=2e-5)
    return model


@pytest.mark.parametrize(
    ("has_length", "options"),
    [
        (True, {}),
        (False, {}),
        (True, {"jit_compile": True}),
        (False, {"steps_per_execution": 2}),
        fast_if(False, True, {"run_eagerly": True}),
        fast_if(False, False, {"jit_compile": True}),
    ],
)
def test_batches_of_any_size_and_number(
    has_length: bool, options: dict[str, Any], rank: int, size: int, exchange: Exchange
) -> None:
    model = check(
        size, rank, common.dense_model, plain, has_length=has_length, loss="mse", **options
    )
    assert len(set(exchange(common.digest(model)))) == 1


@pytest.mark.parametrize(
    ("build", "make", "loss"),
    [
        (common.dense_model, weighted, "mse"),
        (common.dense_model, weighted, MSE(reduction="mean_with_sample_weight")),
        (common.dense_model, weighted, MSE(reduction="sum")),
        (masked_model, words, "mse"),
        (masked_model, weighted_words, MSE(reduction="mean_with_sample_weight")),
        (two_outputs, plain, [MSE(reduction="sum"), MAE(reduction="mean")]),
        (common.dense_model, weighted, MSE(reduction=None)),
    ],
    ids=[
        "sample-weights",
        "mean-of-weights",
        "sum",
        "mask",
        "weighted-mask",
        "two-outputs",
        "none",
    ],
)
@pytest.mark.parametrize("jit_compile", [False, fast_if(False, True)])
def test_losses_with_other_normalizers(
    build: Any, make: Any, loss: Any, jit_compile: bool, rank: int, size: int
) -> None:
    optimizer = lambda: keras.optimizers.SGD(0.01, momentum=0.9)  # noqa: E731
    check(size, rank, build, make, loss=loss, jit_compile=jit_compile, optimizer=optimizer)


def test_weights_of_all_ranks_that_16_bits_cannot_hold(rank: int, size: int) -> None:
    """The weights of a rank add up to 36,000; float16 ends at 65,504."""
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    loss = MSE(reduction="mean_with_sample_weight", dtype="float16")
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss)
    x, y = np.full((6, 1), 1 / (rank + 1), np.float32), np.zeros((6, 1), np.float32)
    callbacks = [ringar.callbacks.Distributed()]
    history = model.fit(x, y, 6, sample_weight=np.full(6, 6000.0), verbose=0, callbacks=callbacks)
    mean = np.mean([1 / (other + 1) ** 2 for other in range(size)])
    assert history.history["loss"][0] == pytest.approx(mean, rel=2e-3)
    assert common.values(model)[0].item() == pytest.approx(1 - 0.2 * mean, rel=2e-3)


class Focused(keras.losses.Loss):
    """Weighs the values of another loss, which is not reduced."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MSE(reduction=None)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.inner(y_true, y_pred) * tf.sigmoid(y_pred[:, 0])


def positive_only(y_true: Any, y_pred: Any) -> Any:
    """Squares whose mask hides the targets that are negative."""
    values = tf.square(y_true - y_pred)
    values._keras_mask = y_true > 0
    return values


def mean_of_batch(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_mean(tf.square(y_true - y_pred))


SPARSE = keras.losses.SparseCategoricalCrossentropy
#: Losses of a batch, the shapes of their predictions, and their targets' kinds.
LEAVING_OUT: list[tuple[Any, tuple[int, ...], str]] = [
    (SPARSE(ignore_class=0), (3,), "classes"),
    (SPARSE(ignore_class=2, reduction="sum"), (4, 3), "classes"),
    (keras.losses.Dice(), (4, 2), "masks"),
    (keras.losses.Tversky(alpha=0.3, beta=0.7, axis=(0, 1)), (4, 3), "masks"),
    (keras.losses.Dice(axis=1, reduction="sum"), (4,), "masks"),
    (positive_only, (4,), "values"),
    (Focused(), (2,), "values"),
    (mean_of_batch, (2,), "values"),
]


def targets(rows: int, seed: int) -> uneven.Batch:
    rng = np.random.default_rng(seed)
    of_kind: dict[str, Callable[[tuple[int, ...]], Any]] = {
        "classes": lambda shape: rng.integers(0, 3, shape[:-1]).astype(np.int32),
        "masks": lambda shape: rng.integers(0, 2, shape).astype(np.float32),
        "values": lambda shape: rng.normal(size=shape).astype(np.float32),
    }
    values = (of_kind[kind]((rows, *shape)) for _, shape, kind in LEAVING_OUT)
    return (common.regression(rows, seed)[0], *values)


def model_of_targets() -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs, activations = keras.Input((6,)), {"classes": "softmax", "masks": "sigmoid"}
    outputs: list[keras.KerasTensor] = []
    for _, shape, kind in LEAVING_OUT:
        dense = keras.layers.Dense(int(np.prod(shape)))(inputs)
        shaped = keras.layers.Reshape(shape)(dense)
        # Keras numbers layers without a name, on rank 0 those of other tests as well.
        name = f"output_{len(outputs)}"
        outputs.append(keras.layers.Activation(activations.get(kind, "linear"), name=name)(shaped))
    return keras.Model(inputs, outputs)


@pytest.mark.parametrize(
    "options", [{}, fast_if(False, {"jit_compile": True}), fast_if(False, {"run_eagerly": True})]
)
def test_losses_that_leave_values_out(
    options: dict[str, Any], rank: int, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """And ratios over a batch. A loss that gives one number alone is warned of."""
    optimizer = lambda: keras.optimizers.SGD(0.02)  # noqa: E731
    loss = [loss for loss, *_ in LEAVING_OUT]
    check(size, rank, model_of_targets, targets, loss=loss, optimizer=optimizer, **options)
    messages = [record.getMessage() for record in caplog.records if "as a whole" in record.message]
    assert all("'mean_of_batch'" in line for line in messages)
    if not options:
        assert len(messages) == (size > 1 and rank == 0)


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight"])
def test_every_rank_has_the_loss_of_the_global_batch(reduction: str, rank: int, size: int) -> None:
    batches = uneven.batches_of(size, weighted)
    losses = []
    for (batch, *_), wrap in (
        (batches[rank], ringar.DistributedOptimizer),
        (uneven.together(batches), lambda optimizer: optimizer),
    ):
        model = common.dense_model()
        model.compile(wrap(keras.optimizers.SGD(0.01)), MSE(reduction=reduction))
        losses.append([float(model.train_on_batch(*batch)) for _ in range(2)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_hundred_examples_in_batches_of_32(rank: int, size: int) -> None:
    """The case of a user: the last batches are smaller, and the losses those of one process."""
    x, y = common.regression(50 * size)
    model, history = uneven.train(
        common.dense_model,
        [(x[rank::size][at : at + 32], y[rank::size][at : at + 32]) for at in (0, 32)],
        distributed=True,
        loss="mse",
    )
    single, expected = uneven.train(
        common.dense_model,
        [(x[at : at + 32 * size], y[at : at + 32 * size]) for at in (0, 32 * size)],
        distributed=False,
        loss="mse",
    )
    assert history["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert common.largest_difference(common.values(model), common.values(single)) < 1e-5
    assert model.evaluate(x, y, verbose=0) == pytest.approx(single.evaluate(x, y, verbose=0), 1e-5)


def test_class_weights(rank: int, size: int) -> None:
    x, y = common.regression(13 * size)
    classes = (y[:, 0] > 0).astype(np.int32)

    def fit(rows: slice, batch: int, optimizer: Any, callbacks: Any) -> Any:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, activation="softmax")])
        loss = "sparse_categorical_crossentropy"
        model.compile(optimizer, loss, weighted_metrics=["accuracy"])
        options: dict[str, Any] = {"shuffle": False, "epochs": 2, "verbose": 0}
        weights = {0: 0.2, 1: 3.0}
        history = model.fit(
            x[rows], classes[rows], batch, class_weight=weights, callbacks=callbacks, **options
        )
        return common.values(model), history.history

    sgd = keras.optimizers.SGD
    expected = one_process.compute(lambda: fit(slice(None), 4 * size, sgd(0.1), []))
    distributed = ringar.DistributedOptimizer(sgd(0.1))
    received = fit(slice(rank, None, size), 4, distributed, [ringar.callbacks.Distributed()])
    assert common.largest_difference(received[0], expected[0]) < 1e-5
    for key, values in expected[1].items():
        assert received[1][key] == pytest.approx(values, rel=1e-5), key


class Batches(keras.utils.PyDataset):
    """Batches of 4 rows for each rank."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__()
        self.x, self.y, self.rows = x, y, 4 * ringar.size()

    def __len__(self) -> int:
        return -(-len(self.x) // self.rows)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(self.rows * index, self.rows * (index + 1))
        return self.x[rows], self.y[rows]


def test_shares_of_any_kind_of_data(rank: int, size: int) -> None:
    """The last global batch has 5 rows, so that ranks have uneven ones, or none."""
    x, y = common.regression(12 * size + 5)
    single = common.dense_model()
    start = common.values(single)
    single.compile(keras.optimizers.SGD(0.1), "mse")
    options: dict[str, Any] = {"shuffle": False, "verbose": 0}
    history = one_process.fit(single, x, y, batch_size=4 * size, **options)

    model = common.dense_model()
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    shard = ringar.data.shard
    kinds = {
        "dataset": (shard(tf.data.Dataset.from_tensor_slices((x, y))).batch(4),),
        "PyDataset": (shard(Batches(x, y), split_batches=True),),
        "arrays": shard((x, y)),
        "tensors": shard((tf.constant(x), tf.constant(y))),
        "tables": shard((pd.DataFrame(x), pd.DataFrame(y))),
    }
    for kind, data in kinds.items():
        model.set_weights(start)
        batch = {} if len(data) == 1 else {"batch_size": 4}
        distributed = ringar.callbacks.Distributed()
        received = model.fit(*data, **batch, **options, callbacks=[distributed]).history
        assert received["loss"] == pytest.approx(history["loss"], rel=1e-5), kind
        difference = common.largest_difference(common.values(model), common.values(single))
        assert difference < 1e-5, kind


@pytest.mark.parametrize("has_length", [True, False])
def test_epochs_have_the_steps_of_one_process(has_length: bool, rank: int, size: int) -> None:
    """Keras takes a step more, without data, and warns, where the number of batches is unknown."""
    x, y = common.regression(6 * size)
    batches = tf.data.Dataset.from_tensor_slices((x, (y, 2 * y))).batch(2 * size)
    batches = batches if has_length else batches.filter(lambda *_: True)

    def fit(data: tf.data.Dataset, wrap: Any, callbacks: Any) -> Any:
        model = two_outputs()
        rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
        optimizer = keras.optimizers.AdamW(
            rate, use_ema=True, ema_overwrite_frequency=4, gradient_accumulation_steps=2
        )
        model.compile(wrap(optimizer), ["mse", "mae"])
        options: dict[str, Any] = {"epochs": 2, "verbose": 0, "callbacks": callbacks}
        history = model.fit(data, validation_data=data, **options).history
        state = [*model.weights, *model.optimizer.variables]
        return [np.asarray(value) for value in state], history

    expected = one_process.compute(lambda: fit(batches, lambda optimizer: optimizer, []))
    parts = ringar.data.shard(batches, split_batches=True)
    assert int(parts.cardinality()) == int(batches.cardinality())
    with warnings.catch_warnings():
        warnings.filterwarnings("error" if has_length else "ignore", "Your input ran out of data")
        received = fit(parts, ringar.DistributedOptimizer, [ringar.callbacks.Distributed()])
    for value, answer in zip(received[0], expected[0], strict=True):
        np.testing.assert_allclose(value, answer, atol=2e-5)
    for name, values in expected[1].items():
        assert received[1][name] == pytest.approx(values, rel=1e-4), name


def test_a_step_costs_one_message(rank: int, size: int) -> None:
    """Rows, the request to stop and the end of a rank's data travel with the gradients."""
    model = common.dense_model()
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    call_counts = []
    for steps in (2, 2, 6):  # the first fit broadcasts the optimizer's state
        batches = [plain(6 - k % 3 + rank, k) for k in range(steps - rank % 2)]
        ringar.reset_stats()
        model.fit(uneven.dataset(batches), verbose=0, callbacks=[ringar.callbacks.Distributed()])
        calls = {name: traffic.calls for name, traffic in ringar.stats().items()}
        of_steps = [calls.pop(name) for name in list(calls) if name.startswith("gradients")]
        assert of_steps == ([steps] if size > 1 else [])
        call_counts.append(calls)
    assert call_counts[1] == call_counts[2]


def test_mixed_precision(rank: int, size: int, mixed_float16: None) -> None:
    batches = uneven.batches_of(size, plain)
    model, _ = uneven.train(common.dense_model, batches[rank], distributed=True, loss="mse")
    single, _ = uneven.train(
        common.dense_model, uneven.together(batches), distributed=False, loss="mse"
    )
    assert common.largest_difference(common.values(model), common.values(single)) < 5e-3
    assert common.number(model.optimizer.dynamic_scale) == common.number(
        single.optimizer.dynamic_scale
    )


@pytest.mark.parametrize("way", ["optimizer", "tape"])
@pytest.mark.parametrize("graph", [True, False])
def test_loop_of_ones_own(way: str, graph: bool, rank: int, size: int, exchange: Exchange) -> None:
    def run(batches: Any, distributed: bool) -> keras.Model:
        model, loss_of = common.dense_model(rank if distributed else 0), MSE()
        optimizer = keras.optimizers.Adam(0.01)
        if distributed and way == "optimizer":
            optimizer = ringar.DistributedOptimizer(optimizer)
        optimizer.build(model.trainable_variables)
        if distributed:
            ringar.broadcast_variables([*model.weights, *optimizer.variables])

        def step(x: Any, y: Any) -> None:
            tape = tf.GradientTape()
            if distributed and way == "tape":
                tape = ringar.DistributedGradientTape(tape)
            with tape:
                loss = loss_of(y, model(x, training=True))
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))

        if graph:
            step = tf.function(step, reduce_retracing=True)
        for x, y in batches:
            step(tf.constant(x), tf.constant(y))
        if distributed:
            assert ringar.join(optimizer) == (longest - len(batches) if size > 1 else 0)
        return model

    batches = uneven.batches_of(size, plain)
    longest = max(map(len, batches))
    model = run(batches[rank], True)
    single = run(uneven.together(batches), False)
    assert common.largest_difference(common.values(model), common.values(single)) < 1e-4
    assert len(set(exchange([v.tobytes() for v in common.values(model)].__repr__()))) == 1


def test_loop_with_two_optimizers(rank: int, size: int) -> None:
    """One loss is a mean over rows, the other one a sum."""

    def run(batches: Any, distributed: bool) -> list[np.ndarray]:
        models = [common.dense_model(seed) for seed in (0, 1)]
        losses = [MSE(), MSE(reduction="sum")]
        optimizers: list[Any] = [keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.01)]
        if distributed:
            for optimizer, op in zip(optimizers, (ringar.Average, ringar.Sum), strict=True):
                ringar.DistributedOptimizer(optimizer, op=op)
        for x, y in batches:
            for model, loss_of, optimizer in zip(models, losses, optimizers, strict=True):
                with tf.GradientTape() as tape:
                    loss = loss_of(y, model(x))
                optimizer.apply(tape.gradient(loss, model.weights), model.weights)
        if distributed:
            ringar.join(*optimizers)
        return [value for model in models for value in common.values(model)]

    batches = uneven.batches_of(size, plain)
    expected = run(uneven.together(batches), False)
    assert common.largest_difference(run(batches[rank], True), expected) < 1e-4


@pytest.mark.ranks(2)
def test_warm_up_counts_the_steps_of_all_ranks(rank: int, size: int, exchange: Exchange) -> None:
    """Otherwise the learning rates of one step differ, and so do the ranks' weights."""
    model, _ = uneven.train(
        common.dense_model,
        uneven.batches_of(size, plain)[rank],
        distributed=True,
        loss="mse",
        callbacks=[ringar.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2)],
    )
    assert len(set(exchange(common.digest(model)))) == 1


@pytest.mark.ranks(2, 3, 4)
def test_join_without_a_step_says_so() -> None:
    optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD())
    with pytest.raises(ValueError, match=r"gradients were reduced on this rank before"):
        ringar.join(optimizer)


@pytest.mark.ranks(2, 3, 4)
def test_layers_that_communicate_need_equal_steps(rank: int) -> None:
    model = keras.Sequential(
        [keras.Input((6,)), ringar.layers.SyncBatchNormalization(), keras.layers.Dense(1)]
    )
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    data = tf.data.Dataset.from_tensors(common.regression(4)).repeat(3 + rank)
    expected = rf"rank {rank} \| ringar.callbacks.Distributed: expected the same number of "
    received = r"steps per epoch on every rank; received 3 \(rank 0\), 4 \(rank 1\).*sync_batch"
    with pytest.raises(ValueError, match=expected + received):
        model.fit(data, verbose=0, callbacks=[ringar.callbacks.Distributed()])
