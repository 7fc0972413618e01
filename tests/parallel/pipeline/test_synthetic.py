"""Synthetic gradients against back-propagation, and against the paper's rules in one process."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.parallel import Pipelined, Synthesizer
from ringar.parallel.pipeline.synthesizers import Labels
from tests import one_process
from tests.comparison import assert_all_close
from tests.parallel.conftest import OpenGrid
from tests.parallel.pipeline import nets as images
from tests.parallel.pipeline import synthetic_nets as nets
from tests.parallel.pipeline.comparison import assert_equal_modules
from tests.plugin import fast_if
from tests.plugin.fixtures import restart

pytestmark = [pytest.mark.usefixtures("initialized")]

STEPS, TOLERANCE = 12, 1e-5


class Weights(keras.callbacks.Callback):
    """The module's weights before the first step and after each."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.snapshots = [self._now()]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.snapshots.append(self._now())

    def _now(self) -> list[np.ndarray]:
        return [np.array(weight) for weight in self.model.get_weights()]

    @property
    def changes(self) -> list[bool]:
        """Whether each step has changed a weight."""
        return [
            any((a != b).any() for a, b in zip(before, after, strict=True))
            for before, after in zip(self.snapshots, self.snapshots[1:], strict=False)
        ]


class Wrapped(keras.Model):
    """A subclassed model that calls another one."""

    def __init__(self, inner: keras.Model) -> None:
        super().__init__()
        self.inner = inner

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs)


def pipelined(
    open_grid: OpenGrid, modules: int, jit_compile: bool = False, **options: Any
) -> Pipelined:
    """A compiled model; modules run eagerly, for these tests are small."""
    options = {"synthesizer_optimizer": nets.sgd(), **options}
    model = Pipelined(
        nets.net(), schedule="synthetic", cuts=nets.cuts(modules), grid=open_grid(modules),
        **options,
    )  # fmt: skip
    model.compile(
        nets.sgd(), nets.loss(), metrics=["accuracy"],
        jit_compile=jit_compile, run_eagerly=not jit_compile,
    )  # fmt: skip
    return model


def _dataset(data: list[Any]) -> tf.data.Dataset:
    """A dataset of batches, some without rows."""
    specs = tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), data[0])
    return tf.data.Dataset.from_generator(lambda: iter(data), output_signature=specs).apply(
        tf.data.experimental.assert_cardinality(len(data))
    )


def _joined(data: list[Any]) -> Any:
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *data)


def _set(model: Pipelined, batch: int) -> None:
    """Let the rate fall after the second batch of the first epoch."""
    if batch == 1 and float(model.optimizer.learning_rate) > 0.25:
        model.optimizer.learning_rate = 0.2


@pytest.mark.ranks(1, 2, 3, 4)
def test_the_true_gradient_is_back_propagation_bit_for_bit(open_grid: OpenGrid, size: int) -> None:
    data = nets.batches(STEPS, rows=[8, 8, 5])
    reference = nets.net()
    reference.compile(nets.sgd(), nets.loss(), run_eagerly=True)
    one_process.fit(reference, nets.dataset(data))
    model = pipelined(open_grid, size, synthesizer="true")
    model.fit(nets.dataset(data), verbose=0)
    assert_equal_modules(model, reference)
    assert model.in_flight == 0


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize(
    ("conditioned", "mix"),
    [(True, 0.0), fast_if(False, False, 0.0), (False, 0.5), fast_if(False, True, 1.0)],
)
def test_is_the_papers_rule(open_grid: OpenGrid, size: int, conditioned: bool, mix: float) -> None:
    """With `ahead=1` a module learns from each batch before it takes the next one."""
    data = nets.batches(STEPS, rows=[8, 5, 8, 9])
    reference = nets.net()
    synthesizers = nets.train_decoupled(reference, data, size, conditioned, mix)
    model = pipelined(
        open_grid, size, conditioned=conditioned, bp_lambda=mix, ahead=1,
        synthesizer=nets.synthesizer,
    )  # fmt: skip
    history = model.fit(nets.dataset(data), verbose=0).history
    model.drain()
    assert_equal_modules(model, reference, atol=TOLERANCE, rtol=TOLERANCE)
    assert np.isfinite(history["loss"]).all()
    if model.synthesizer is not None:
        expected = synthesizers[model.module]
        assert_all_close(model.synthesizer.get_weights(), expected, atol=TOLERANCE)


@pytest.mark.ranks(2, 4)
def test_synthesizers_begin_with_zero(open_grid: OpenGrid, size: int) -> None:
    """In step 1 only the last module changes; later all do, for synthesizers have learned.

    An empty batch teaches nothing. Layers made later have the names of a program without them.
    """
    keras.layers.Dense(1)
    first = keras.layers.Dense(1).name
    model = pipelined(open_grid, size, ahead=1, conditioned=True)
    second = keras.layers.Dense(1).name
    assert int(second.split("_")[1]) == int(first.split("_")[1]) + 1
    callback = Weights()
    weights = {layer.name: np.array(layer.kernel) for layer in model.network.layers[1:]}
    data = nets.batches(STEPS, rows=[8, 8, 0, 8])
    model.fit(nets.dataset(data), callbacks=[callback], verbose=0)
    synthesizer = [] if model.synthesizer is None else model.synthesizer.get_weights()
    assert all(np.isfinite(weight).all() for weight in synthesizer)
    if model.module == 0:  # its penalty has a gradient of its own, which is not synthetic
        kernel, bias = callback.snapshots[1]
        np.testing.assert_allclose(kernel, weights["dense0"] * (1 - 0.1 * 2 * 0.01), rtol=1e-5)
        assert (bias == 0).all()
        assert (callback.snapshots[-1][1] != 0).any()
    else:
        assert callback.changes[0] == (model.module == size - 1)
        assert callback.changes[-1]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("outputs", [1, 2])
def test_batches_without_rows_do_not_count_in_the_loss(open_grid: OpenGrid, outputs: int) -> None:
    """Neither the first one nor a later one, in `fit` and `evaluate`, eagerly and compiled."""
    x = keras.Input((2,))
    h = keras.layers.Dense(2, name="cut")(x)
    ends = [keras.layers.Dense(1, name=name, trainable=False)(h) for name in "ab"[:outputs]]
    net = keras.Model(x, ends[0] if outputs == 1 else ends)
    model = Pipelined(net, schedule="synthetic", synthesizer="zero", cuts=["cut"],
                      grid=open_grid(2))  # fmt: skip
    metrics = ["mae"] if outputs == 1 else [["mae"]] * outputs
    model.compile(nets.sgd(), ["mse"] * outputs, metrics=metrics, run_eagerly=outputs == 1)
    random = np.random.default_rng(0)
    rows = [random.normal(size=(n, 3)).astype("float32") for n in (0, 4, 0, 4)]
    data = [(batch[:, :2], (batch[:, 2:],) * outputs) for batch in rows]
    expected = model.evaluate(*_joined(data), return_dict=True)
    for logs in (
        model.fit(_dataset(data), verbose=0).history,
        model.evaluate(_dataset(data), return_dict=True),
    ):
        assert {name: pytest.approx(np.squeeze(value)) for name, value in logs.items()} == expected


@pytest.mark.ranks(2)
def test_sparse_updates(open_grid: OpenGrid) -> None:
    """Modules update in some steps only, each in others; all take every batch forward."""
    steps = 40
    model = pipelined(open_grid, 2, update_probability=0.5)
    callback = Weights()
    history = model.fit(nets.dataset(nets.batches(steps)), callbacks=[callback], verbose=0).history
    changes_of_ranks = ringar.allgather_object(callback.changes)
    assert all(8 <= sum(changes) <= 32 for changes in changes_of_ranks), changes_of_ranks
    assert changes_of_ranks[0] != changes_of_ranks[1]
    assert int(model.optimizer.iterations) == sum(callback.changes)
    model.drain()
    assert model.in_flight == 0
    assert history["accuracy"][0] > 0.34


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("ahead", [1, fast_if(False, 4)])
def test_synthetic_inputs(open_grid: OpenGrid, size: int, ahead: int) -> None:
    """Modules that predict their inputs learn them, and compose to one net that has learned."""
    data = nets.batches(8)
    x, y = (np.concatenate(arrays) for arrays in zip(*data, strict=True))
    linear = Synthesizer(hidden_layers=0)
    model = pipelined(
        open_grid, size, synthetic_inputs=linear, ahead=ahead, conditioned=True, bp_lambda=0.5,
        synthesizer_optimizer=keras.optimizers.Adam(0.03),
    )  # fmt: skip
    before = model.evaluate(x, y, return_dict=True)
    for _ in range(2):
        model.fit(nets.dataset(data), epochs=5, verbose=0)
    model.drain()
    after = model.evaluate(x, y, return_dict=True)
    assert after["loss"] < before["loss"] - 0.05, (before, after)
    merged = model.whole()
    if model.module > 0:
        true = keras.Model(merged.inputs, merged.layers[model.module - 1].output)(x)
        assert model.input_synthesizer is not None
        (predicted,) = keras.tree.flatten(model.input_synthesizer([x]))
        error = np.mean((predicted - true) ** 2) / np.var(true)
        assert error < 0.25, error


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    "options",
    [
        {"conditioned": True, "bp_lambda": 0.5, "update_probability": 0.7},
        fast_if(False, {"synthetic_inputs": True, "ahead": 3}),
        fast_if(False, {"conditioned": True, "jit_compile": True}),
    ],
)
def test_a_run_is_replayed_in_one_process(
    open_grid: OpenGrid, size: int, options: dict[str, Any]
) -> None:
    """Messages come when they come; the weights follow from them."""
    data = nets.batches(STEPS)
    model = pipelined(open_grid, size, **options)
    model.fit(nets.dataset(data[:3]), verbose=0)
    assert model.record_messages() == []
    model.fit(nets.dataset(data), epochs=2, verbose=0)
    logs = model.record_messages(on=False)
    assert [len(log.activations) for log in logs] == [0] + [2 * STEPS] * (size - 1)
    assert [len(log.gradients) for log in logs] == [2 * STEPS] * (size - 1) + [0]
    weights = one_process.compute(lambda: model.replay(logs, data * 2).get_weights())
    weights_of_run = model.whole().get_weights()
    assert_all_close(weights, weights_of_run)
    first = next(message for _, message in logs[0].gradients if message.tensors is not None)
    assert first.tensors is not None
    first.tensors[0][:] += 1.0  # another message: other weights
    variant = one_process.compute(lambda: model.replay(logs, data * 2).get_weights())
    assert any((a != b).any() for a, b in zip(variant, weights_of_run, strict=True))


@pytest.mark.ranks(2)
def test_a_replay_has_the_learning_rates_of_the_run(open_grid: OpenGrid) -> None:
    """Callbacks set them before a step, after one, and between epochs; the user between runs."""
    data = nets.batches(3)
    model = pipelined(open_grid, 2, synthesizer="zero")
    model.record_messages()
    model.optimizer.learning_rate = 0.3
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch)),
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: _set(model, batch)),
    ]
    model.fit(nets.dataset(data), epochs=2, callbacks=callbacks, verbose=0)
    logs = model.record_messages(on=False)
    rates = [(0, 0.3), (2, 0.2), (3, 0.1)]
    for log in logs:
        np.testing.assert_allclose(log.rates, rates, rtol=1e-6)
    weights = one_process.compute(lambda: model.replay(logs, data * 2).get_weights())
    assert_all_close(weights, model.whole().get_weights())


@pytest.mark.ranks(2)
def test_a_replay_leaves_the_synthesizers_of_the_run_as_they_are(
    open_grid: OpenGrid, rank: int, size: int
) -> None:
    hidden = tf.TensorSpec([None, nets.UNITS], tf.float32)
    net = Wrapped(nets.synthesizer([hidden], [hidden]))
    untrained = net.get_weights()
    data = nets.batches(STEPS)
    model = pipelined(open_grid, size, synthesizer=net)
    model.record_messages()
    model.fit(nets.dataset(data), verbose=0)
    logs = model.record_messages(on=False)
    model.fit(nets.dataset(data), verbose=0)
    before = net.get_weights()
    assert any((a != b).any() for a, b in zip(before, untrained, strict=True)) == (rank == 0)
    one_process.compute(lambda: model.replay(logs, data))
    assert_all_close(net.get_weights(), before)


@pytest.mark.ranks(4)
def test_replicas(open_grid: OpenGrid, rank: int) -> None:
    """Replicas of a module have synthesizers of their own, and equal weights."""
    grid = open_grid(2)
    model = Pipelined(nets.net(), schedule="synthetic", cuts=nets.cuts(2), grid=grid,
                      update_probability=0.7)  # fmt: skip
    model.compile(nets.sgd(), nets.loss(), run_eagerly=True)
    model.fit(nets.dataset(nets.batches(STEPS, seed=grid.group)), epochs=2, verbose=0)
    weights_of_ranks = ringar.allgather_object(model.get_weights())
    assert_all_close(weights_of_ranks[rank], weights_of_ranks[grid.part])


@pytest.mark.ranks(2, 4)
def test_maps_cross_the_cuts(open_grid: OpenGrid, size: int) -> None:
    """Convolutional synthesizers, skip connections, a file of the plain model."""
    model = Pipelined(images.residual(), schedule="synthetic", cuts=images.CUTS[size],
                      grid=open_grid(size), conditioned=True, ahead=2,
                      synthesizer=Synthesizer(hidden_layers=0, kernel_size=3))  # fmt: skip
    model.compile("adam", images.loss(), run_eagerly=True)
    data = images.batches(4)
    losses = model.fit(images.dataset(data), epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0]
    merged = model.whole()
    np.testing.assert_allclose(
        model.predict(data[0][0]), merged.predict(data[0][0], verbose=0), atol=TOLERANCE
    )
    assert (model.synthesizer is None) == (model.module == size - 1)


@pytest.mark.ranks(2)
def test_other_dtypes_and_a_restart(open_grid: OpenGrid) -> None:
    """Whole numbers and bfloat16 cross the cut; after a restart the mailboxes are opened anew."""
    words = keras.Input((6,), dtype="int32")
    mask = keras.ops.cast(keras.ops.not_equal(words, 0), "int32")
    x = keras.layers.Embedding(9, 8, dtype="mixed_bfloat16", name="inner")(words)
    x = x * keras.ops.cast(keras.ops.expand_dims(mask, -1), "bfloat16")
    x = keras.ops.sum(keras.ops.cast(x, "float32"), axis=1)
    net = keras.Model(words, keras.layers.Dense(3, name="logits")(x))
    random = np.random.default_rng(0)
    data = random.integers(0, 9, (24, 6)), random.integers(0, 3, 24)
    model = Pipelined(net, schedule="synthetic", cuts=["inner"], grid=open_grid(2),
                      synthesizer=Synthesizer(0), ahead=2, conditioned=True)  # fmt: skip
    model.compile("adam", nets.loss(), run_eagerly=True)
    first = model.fit(*data, batch_size=8, epochs=3, verbose=0).history["loss"]
    restart()
    assert model.in_flight <= 2
    second = model.fit(*data, batch_size=8, epochs=3, verbose=0).history["loss"]
    assert second[-1] < first[0]
    model.drain()
    assert model.in_flight == 0


@pytest.mark.ranks(1)
def test_default_synthesizers() -> None:
    def spec(*shape: int, dtype: Any = tf.float32) -> tf.TensorSpec:
        return tf.TensorSpec([None, *shape], dtype)

    maps, flat, labels = spec(6, 6, 4), spec(7), spec(3)
    for inputs, outputs in (
        ([flat, labels], [flat]),
        ([maps, labels], [maps]),
        ([maps, flat, labels], [maps, flat]),
        ([spec(9, 2), labels], [spec(9, 2)]),
        ([spec(3, 4, 5, 2)], [spec(3, 4, 5, 2)]),
        ([spec(6, 6, 4, dtype=tf.uint8)], [spec(5)]),
    ):
        tensors = [tf.cast(1 + 9 * tf.random.uniform([2, *s.shape[1:]]), s.dtype) for s in inputs]
        model = Synthesizer(units=8, filters=4)(inputs, outputs)
        zeros = keras.tree.flatten(model(tensors, training=True))
        assert [tuple(t.shape) for t in zeros] == [(2, *s.shape[1:]) for s in outputs]
        assert all(float(tf.reduce_max(abs(t))) == 0 for t in zeros)
        numbers = keras.tree.flatten(Synthesizer(0).for_inputs(inputs, outputs)(tensors))
        assert all(float(tf.reduce_max(abs(t))) > 0 for t in numbers)
    kinds = [type(layer).__name__ for layer in Synthesizer()([maps], [maps]).layers]
    assert kinds.count("Conv2D") == 2
    assert kinds.count("BatchNormalization") == 1


@pytest.mark.ranks(1)
def test_labels_of_several_outputs() -> None:
    """As Keras does, by the names of the outputs."""
    x = keras.Input((2,))
    net = keras.Model(x, [keras.layers.Dense(2, name=name)(x) for name in ("b", "a")])
    y = {"a": np.array([1]), "b": np.array([[0.25, 0.75]])}
    labels = Labels(net)(y)
    np.testing.assert_array_equal(labels[0], y["b"])
    np.testing.assert_array_equal(labels[1], [[0, 1]])
