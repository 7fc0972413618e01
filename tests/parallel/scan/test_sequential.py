"""Training by a scan is ordinary training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.errors import OutOfMemoryError
from ringar.parallel.scan import elements, tree
from ringar.parallel.scan.sequential import Sequential
from tests import one_process
from tests.comparison import assert_all_close
from tests.parallel.scan import nets
from tests.plugin import fast_if

pytestmark = [pytest.mark.ranks(1)]

layers = keras.layers


def assert_equal(values: Any, expected: Any, tolerance: float = 1e-5) -> None:
    assert len(values) == len(expected)
    assert_all_close(values, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "name", [fast_if(number % 2 == 0, name) for number, name in enumerate(nets.NETS)]
)
def test_gradients_are_the_tapes(name: str) -> None:
    x, y = nets.data(name)
    expected = nets.gradients(nets.build(name, keras.Sequential), x, y)
    assert any(np.abs(gradient).max() > 1e-3 for gradient in expected)
    most = tree.most_levels(2 * len(nets.NETS[name][0]()))
    for levels in (None, *sorted({0, min(1, most), most})):
        model = nets.build(name, levels=levels)
        gradients = nets.gradients(model, x, y)
        assert isinstance(model.chosen_levels, int)
        for slope, reference in zip(gradients, expected, strict=True):
            scale = max(np.abs(reference).max(), 1e-3)
            np.testing.assert_allclose(slope, reference, rtol=0, atol=1e-5 * scale)


def train(model: Any, name: str, **options: Any) -> dict[str, list[float]]:
    x, y = nets.data(name, rows=20)
    model.compile(
        "adam", "categorical_crossentropy", metrics=["mae"], weighted_metrics=["accuracy"],
        **options.pop("compile", {}),
    )  # fmt: skip
    history: dict[str, list[float]] = model.fit(
        x, y, batch_size=8, epochs=3, shuffle=False, verbose=0,
        validation_data=nets.data(name, seed=4), **options,
    ).history  # fmt: skip
    return history


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        fast_if(False, "convolutions", None),
        ("convolutions", 2),
        fast_if(False, "dropout", 0),
    ],
)
def test_training(name: str, levels: int | None) -> None:
    """The last batch is smaller; metrics, validation and predictions included."""
    reference, model = nets.build(name, keras.Sequential), nets.build(name, levels=levels)
    expected, history = train(reference, name), train(model, name)
    assert list(history) == list(expected)
    for metric in expected:
        np.testing.assert_allclose(history[metric], expected[metric], rtol=1e-4)
    assert_equal(model.get_weights(), reference.get_weights())
    x, y = nets.data(name, seed=5)
    assert_equal(model.predict(x, verbose=0), reference.predict(x, verbose=0))
    assert_equal(model.evaluate(x, y, verbose=0), reference.evaluate(x, y, verbose=0), 1e-4)


@pytest.mark.parametrize(
    "options", [{"steps_per_execution": 2}, fast_if(False, {"run_eagerly": True})]
)
def test_ways_to_run(options: dict[str, Any]) -> None:
    reference, model = nets.build("convolutions", keras.Sequential), nets.build("convolutions")
    train(reference, "convolutions")
    train(model, "convolutions", compile=options)
    assert_equal(model.get_weights(), reference.get_weights())


def test_weights_of_samples_and_classes() -> None:
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(1).normal(size=(12, 5)).astype(np.float32)
    labels = np.arange(12) % 4
    for options in (
        {"sample_weight": np.linspace(0, 2, 12)},
        {"class_weight": {0: 1.0, 1: 0.2, 2: 3.0, 3: 0.0}},
    ):
        weights = []
        for kind in (keras.Sequential, Sequential):
            model = nets.build("dense", kind)
            model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            model.fit(x, labels, batch_size=6, epochs=2, shuffle=False, verbose=0, **options)
            weights.append(model.get_weights())
        assert_equal(weights[1], weights[0])


def test_regularizers_frozen_layers_and_constraints() -> None:
    def net() -> list[Any]:
        return [
            keras.Input((5,)),
            layers.Dense(6, activation="tanh", kernel_regularizer="l2", name="one"),
            layers.Dense(6, activation="relu", trainable=False, bias_regularizer="l1"),
            layers.Dense(6, activation="tanh", bias_regularizer="l1", bias_initializer="ones"),
            layers.Dense(4, kernel_constraint="non_neg", kernel_regularizer="l1l2"),
        ]

    x, y = nets.data("dense")
    trained = []
    for kind in (keras.Sequential, Sequential):
        keras.utils.set_random_seed(2)
        model = kind(net())
        model.compile("sgd", "mse")
        losses = model.fit(x, y, epochs=4, shuffle=False, verbose=0).history["loss"]
        trained.append((model, losses))
    (reference, expected), (model, losses) = trained
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert_equal(model.get_weights(), reference.get_weights())
    assert (model.get_weights()[-2] >= 0).all()


def test_without_weights_to_train() -> None:
    model = Sequential([keras.Input((5,)), layers.Dense(4, trainable=False), layers.Dense(4)])
    model.trainable = False
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        model.fit(*nets.data("dense"), verbose=0)


def test_a_layer_that_is_used_twice() -> None:
    x, y = nets.data("dense")
    gradients = []
    for kind in (keras.Sequential, Sequential):
        keras.utils.set_random_seed(2)
        twice = layers.Dense(5, activation="tanh")
        gradients.append(
            nets.gradients(kind([keras.Input((5,)), twice, twice, layers.Dense(4)]), x, y)
        )
    assert len(gradients[0]) == 4
    assert_equal(gradients[1], gradients[0])


def test_float64() -> None:
    keras.utils.set_random_seed(2)
    net = [
        keras.Input((6, 6, 2), dtype="float64"), layers.Conv2D(3, 3, activation="relu"),
        layers.MaxPooling2D(), layers.Conv2D(3, 2, activation="tanh"), layers.Flatten(),
        layers.Dense(4),
    ]  # fmt: skip
    for layer in net[1:]:
        layer.dtype_policy = keras.DTypePolicy("float64")
    reference = keras.Sequential(net)
    x, y = np.random.default_rng(0).normal(size=(3, 6, 6, 2)), np.eye(4)[:3]
    expected = nets.gradients(reference, x, y)
    model = Sequential.from_config({**reference.get_config(), "levels": 2})
    model.set_weights(reference.get_weights())
    gradients = nets.gradients(model, x, y)
    assert all(gradient.dtype == np.float64 for gradient in gradients)
    assert_equal(gradients, expected, 1e-12)


@pytest.mark.ranks(1, 2)
def test_saving(tmp_path: Path, rank: int) -> None:
    model = nets.build("convolutions", levels=2)
    train(model, "convolutions")
    path = tmp_path / f"model{rank}.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert type(loaded) is Sequential
    assert loaded.levels == 2
    x, y = nets.data("convolutions", rows=20)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    for net in (model, loaded):
        net.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert_equal(loaded.get_weights(), model.get_weights())
    assert Sequential.from_config(model.get_config()).levels == 2


def test_layers_that_are_added_one_by_one() -> None:
    x, y = nets.data("dense")
    model, reference = Sequential(), keras.Sequential()
    for net in (model, reference):
        keras.utils.set_random_seed(3)
        net.add(keras.Input((5,)))
        net.add(layers.Dense(6, activation="tanh"))
        nets.gradients(net, x, x[:, :1])
        net.add(layers.Dense(4))
    assert_equal(nets.gradients(model, x, y), nets.gradients(reference, x, y))
    model.pop()
    reference.pop()
    assert_equal(nets.gradients(model, x, x[:, :1]), nets.gradients(reference, x, x[:, :1]))


def test_without_an_input_shape() -> None:
    """Keras builds the model at the first batch."""
    x, y = nets.data("dense")
    keras.utils.set_random_seed(3)
    model = Sequential([layers.Dense(6, activation="tanh"), layers.Dense(4)])
    model.compile("sgd", "mse")
    losses = model.fit(x, y, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_inputs_of_one_number() -> None:
    model = Sequential([keras.Input((1,)), layers.Dense(4, activation="relu"), layers.Dense(1)])
    for x in (np.arange(6.0), np.arange(6.0)[:, None]):
        model.compile("sgd", "mse")
        model.fit(x, x, verbose=0)


def test_pruned_weights() -> None:
    """Their entries are left out, and come back once they are no longer zero."""
    x, y = nets.data("convolutions")
    models = nets.build("convolutions", keras.Sequential), nets.build("convolutions", levels=2)
    random = np.random.default_rng(0)
    weights = [w * (random.random(w.shape) < 0.2) for w in models[0].get_weights()]
    for change in (0, 0.01):
        for model in models:
            model.set_weights([weight + change for weight in weights])
        expected, gradients = (nets.gradients(model, x, y) for model in models)
        assert_equal(gradients, expected)


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.usefixtures("initialized")
def test_distributed_optimizer(size: int, rank: int) -> None:
    """Each rank has a part of a batch; the gradients are those of the whole."""
    rows = 2 * size
    x, y = nets.data("convolutions", rows)
    reference = nets.build("convolutions", keras.Sequential)
    reference.compile(keras.optimizers.SGD(0.1), "mse")
    one_process.fit(reference, x, y, batch_size=rows, epochs=3, shuffle=False)
    model = nets.build("convolutions", levels=1)
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    part = slice(2 * rank, 2 * rank + 2)
    model.fit(x[part], y[part], batch_size=2, epochs=3, shuffle=False, verbose=0)
    assert_equal(model.get_weights(), reference.get_weights())


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (layers.BatchNormalization(name="odd"), "layer odd; it is a BatchNormalization"),
        (keras.Sequential([layers.Dense(3)], name="odd"), "layer odd; it is a Sequential"),
        (layers.Dense(3, activity_regularizer="l2", name="odd"), "has an `activity_regularizer`"),
        (
            layers.MaxPooling2D(data_format="channels_first", name="odd"),
            'layer odd; its `data_format` is "channels_first"',
        ),
        (
            layers.Dense(3, dtype="mixed_bfloat16", name="odd"),
            "layer odd; it computes in bfloat16, not in float32 or float64",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, keras.Layer) else "",
)
def test_layers_that_have_no_jacobian_here(layer: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"must be Dense, Conv2D, .*Received: .*{message}"):
        Sequential([layer])
    model = Sequential([keras.Input((4,)), layers.Dense(4)])
    with pytest.raises(ValueError, match="train with `keras.Sequential`, which takes any layer"):
        model.add(layer)


@pytest.mark.parametrize("odd", [
    lambda: layers.Dense(3, activation="gelu", name="odd"), lambda: layers.ReLU(6.0, name="odd"),
    lambda: layers.Softmax(name="odd"), lambda: layers.Activation("elu", name="odd"),
])  # fmt: skip
def test_activations_before_the_last_layer(odd: Any) -> None:
    Sequential([keras.Input((4,)), layers.Dense(4), odd()])
    with pytest.raises(ValueError, match="Received: layer odd with activation .*not the last"):
        Sequential([keras.Input((4,)), odd(), layers.Dense(4)])


def test_arguments() -> None:
    values: tuple[Any, ...] = (-1, 1.5, "all")
    for levels in values:
        with pytest.raises(ValueError, match="`levels` must be a whole number that is not neg"):
            Sequential([layers.Dense(3)], levels=levels)
    with pytest.raises(ValueError, match="must be known in each layer.*Received: .*layer conv"):
        Sequential([keras.Input((None, 8, 1)), layers.Conv2D(2, 3, name="conv")])
    with pytest.raises(ValueError, match="the same dtype.*layer one in float32, layer two in fl"):
        Sequential(
            [
                keras.Input((4,)),
                layers.Dense(4, name="one"),
                layers.Dense(4, dtype="float64", name="two"),
            ]
        )
    model = nets.build("dense")
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        model.compile("sgd", "mse", jit_compile=True)


def test_products_that_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements, "MOST_ENTRIES", 100)
    x, y = nets.data("convolutions")
    nets.gradients(nets.build("convolutions", levels=0), x, y)
    message = r"Received: layers .*\(.*\) and .*Use fewer `lev"
    with pytest.raises(OutOfMemoryError, match=message):
        nets.gradients(nets.build("convolutions", levels=3), x, y)
    model = nets.build("convolutions", levels=3)
    model.compile("sgd", "mse")
    with pytest.raises(tf.errors.ResourceExhaustedError, match=message):
        model.fit(x, y, verbose=0)
