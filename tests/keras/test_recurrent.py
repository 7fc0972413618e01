"""ScanSimpleRNN and ScanGRU are Keras' SimpleRNN and GRU: outputs, gradients, weights, masks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.plugin import fast_if

pytestmark = [pytest.mark.ranks(1)]

PAIRS = {
    "SimpleRNN": (keras.layers.SimpleRNN, ringar.layers.ScanSimpleRNN),
    "GRU": (keras.layers.GRU, ringar.layers.ScanGRU),
}
kinds = pytest.mark.parametrize("kind", PAIRS)
ways_back = pytest.mark.parametrize("backward", [fast_if(False, "auto"), "scan", 2])


def build(
    kind: str, units: int = 5, *, features: int = 3, options: Any = None, **own: Any
) -> tuple[Any, Any]:
    """Keras' layer and ringar's, with the same weights, none of them 0."""
    options = options or {}
    peer, layer = PAIRS[kind]
    pair = peer(units, **options), layer(units, **options, **own)
    rng = np.random.default_rng(units)
    for one in pair:
        one.build((4 if one.stateful else None, None, features))
    scale = 1 / np.sqrt(units + features)
    pair[0].set_weights([scale * rng.normal(size=w.shape) for w in pair[0].get_weights()])
    pair[1].set_weights(pair[0].get_weights())
    return pair


def sequences(batch: int, steps: int, features: int = 3, dtype: str = "float32") -> tf.Tensor:
    rng = np.random.default_rng(steps)
    return tf.constant(rng.normal(size=(batch, steps, features)), dtype)


def results(layer: Any, x: tf.Tensor, *, compiled: bool | None = None, **call: Any) -> list[Any]:
    """Outputs, states, and the gradients of inputs, initial state and all weights."""

    def run(x: tf.Tensor, **call: Any) -> list[Any]:
        sources = [x, *call.get("initial_state", [])]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            outputs = tf.nest.flatten(layer(x, **call))
            # Different for every number, so that none can stand for another.
            loss = tf.add_n([_weighed(output, i) for i, output in enumerate(outputs)])
        weights = [weight.value for weight in layer.trainable_variables]
        return [*outputs, *tape.gradient(loss, sources + weights)]

    return (run if compiled is None else tf.function(run, jit_compile=compiled))(x, **call)


def _weighed(output: tf.Tensor, index: int) -> tf.Tensor:
    factors = np.random.default_rng(index).normal(size=output.shape)
    return tf.cast(tf.reduce_sum(tf.cast(output, tf.float64) * factors), tf.float64)


def assert_same(found: list[Any], expected: list[Any], tolerance: float = 1e-4) -> None:
    assert len(found) == len(expected)
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        assert one.shape == other.shape
        scale = max(1e-3, np.abs(other).max(initial=0.0))
        assert np.abs(one - other).max(initial=0.0) <= tolerance * scale, f"result {index}"


@kinds
@ways_back
@pytest.mark.parametrize("sequences_out", [False, True])
def test_results_are_those_of_keras(kind: str, backward: Any, sequences_out: bool) -> None:
    options = {"return_sequences": sequences_out, "return_state": True}
    for units, batch, steps in ((1, 1, 1), (5, 3, 7), (20, 17, 40), (33, 2, 9), (64, 5, 12)):
        peer, layer = build(kind, units, options=options, backward=backward)
        x = sequences(batch, steps)
        assert_same(results(layer, x), results(peer, x))
        initial = [tf.ones((batch, units)) * 0.3]
        assert_same(
            results(layer, x, initial_state=initial), results(peer, x, initial_state=initial)
        )


@kinds
@pytest.mark.parametrize("steps", [1000, 3000])
def test_long_sequences(kind: str, steps: int) -> None:
    peer, layer = build(kind, 20, features=1, options={"return_sequences": True})
    x = sequences(4, steps, 1)
    expected = results(peer, x, compiled=True)
    for backward in (0, 62):
        layer._levels = backward
        assert_same(results(layer, x, compiled=False), expected)


@kinds
@ways_back
@pytest.mark.parametrize("zero", [False, True])
def test_masks(kind: str, backward: Any, zero: bool) -> None:
    x = sequences(6, 9)
    mask = np.random.default_rng(3).random((6, 9)) < 0.6
    mask[0], mask[1], mask[2, :4], mask[3, 5:] = True, False, False, False
    initial = [tf.ones((6, 5)) * 0.3]
    for sequences_out in (False, True):
        options = {"return_sequences": sequences_out, "return_state": True}
        peer, layer = build(kind, options=options, backward=backward)
        for one in (peer, layer):
            one.zero_output_for_mask = zero
        call = {"mask": tf.constant(mask), "initial_state": initial}
        assert_same(results(layer, x, **call), results(peer, x, **call))


@kinds
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("backward", ["serial", "scan"])
def test_functions(kind: str, compiled: bool, backward: str) -> None:
    peer, layer = build(kind, options={"return_sequences": True}, backward=backward)
    x = sequences(4, 11)
    assert_same(results(layer, x, compiled=compiled), results(peer, x))


OPTIONS: list[dict[str, Any]] = [
    {"go_backwards": True},
    {"go_backwards": True, "return_sequences": True},
    {"use_bias": False},
    {"activation": "relu"},
    {"activation": "sigmoid"},
    {"activation": None},
    {"activation": "hard_sigmoid"},
    {"unroll": True},
    {"dtype": "float64"},
]


@kinds
@pytest.mark.parametrize(
    ("options", "backward"),
    [
        fast_if(backward == "scan" or "go_backwards" in options, options, backward)
        for options in OPTIONS
        for backward in ("serial", "scan")
    ],
    ids=str,
)
def test_options(kind: str, backward: str, options: dict[str, Any]) -> None:
    peer, layer = build(kind, options=options, backward=backward)
    dtype = options.get("dtype", "float32")
    x = sequences(4, 8, dtype=dtype)
    tolerance = 1e-4 if dtype == "float32" else 1e-10
    assert_same(results(layer, x), results(peer, x), tolerance)
    mask = tf.constant(np.random.default_rng(5).random((4, 8)) < 0.7)
    if not options.get("unroll"):
        assert_same(results(layer, x, mask=mask), results(peer, x, mask=mask), tolerance)


@pytest.mark.parametrize("gates", ["tanh", "relu", "hard_sigmoid", None])
def test_gates_may_have_another_activation(gates: str | None) -> None:
    peer, layer = build("GRU", options={"recurrent_activation": gates}, backward="scan")
    assert_same(results(layer, sequences(3, 6)), results(peer, sequences(3, 6)))


@kinds
def test_states_may_be_kept(kind: str) -> None:
    pair = build(kind, options={"stateful": True})
    x = sequences(4, 6)
    outputs = []
    for one in pair:
        model = keras.Sequential([keras.Input(batch_shape=(4, 6, 3)), one])
        outputs.append([model.predict(x, verbose=0, batch_size=4) for _ in range(3)])
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-5)
    assert np.abs(outputs[0][0] - outputs[0][1]).max() > 1e-3


@kinds
def test_dropout_of_inputs_is_that_of_keras(kind: str) -> None:
    peer, layer = build(kind, options={"dropout": 0.5, "seed": 7})
    x = sequences(4, 6)
    assert_same([layer(x, training=True)], [peer(x, training=True)])
    assert_same([layer(x)], [peer(x)])
    assert np.abs(layer(x, training=True) - layer(x)).max() > 1e-3


@kinds
def test_recurrent_dropout_takes_the_loop_of_keras(kind: str) -> None:
    peer, layer = build(kind, options={"recurrent_dropout": 0.5, "seed": 7})
    x = sequences(4, 6)
    assert_same(results(layer, x, training=True), results(peer, x, training=True))


@kinds
def test_half_precision(kind: str) -> None:
    peer, _ = build(kind, options={"return_sequences": True})
    layer = PAIRS[kind][1](5, return_sequences=True, dtype="mixed_float16")
    layer.build((None, None, 3))
    layer.set_weights(peer.get_weights())
    x = sequences(4, 8)
    outputs = layer(x)
    assert outputs.dtype == tf.float16
    assert_same([outputs], [peer(x)], 5e-3)


@pytest.mark.parametrize(
    ("kind", "backward"),
    [
        fast_if(pair in (("SimpleRNN", "serial"), ("GRU", "scan")), *pair)
        for pair in itertools.product(PAIRS, ["serial", "scan"])
    ],
)
def test_training_has_the_same_curve(kind: str, backward: str) -> None:
    x = np.random.default_rng(0).normal(size=(64, 30, 3)).astype("float32")
    y = np.sign(x[:, -3:].sum(axis=(1, 2)))
    curves = []
    for layer in build(kind, 20, backward=backward):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((30, 3)), layer, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        curves.append(model.fit(x, y, batch_size=16, epochs=8, verbose=0).history["loss"])
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-4)
    assert curves[0][-1] < 0.8 * curves[0][0]


@kinds
def test_weights_and_models_are_saved(kind: str, tmp_path: Path) -> None:
    peer, layer = build(kind, backward=3, threads=2)
    x = sequences(4, 6)
    model = keras.Sequential([keras.Input((6, 3)), layer])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (loaded.layers[0].backward, loaded.layers[0].threads) == (3, 2)
    assert_same([loaded(x)], [peer(x)])
    fresh = build(kind, 5)
    for one in fresh:
        one.set_weights([0 * weight for weight in one.get_weights()])
    for source, target in ((layer, fresh[0]), (peer, fresh[1])):
        keras.Sequential([keras.Input((6, 3)), source]).save_weights(tmp_path / "a.weights.h5")
        other = keras.Sequential([keras.Input((6, 3)), target])
        other.load_weights(tmp_path / "a.weights.h5")
        assert_same([other(x)], [peer(x)])


@kinds
def test_threads_change_nothing_but_rounding(kind: str) -> None:
    x = sequences(5, 50)
    outcomes = [
        results(build(kind, 8, backward="scan", threads=threads)[1], x) for threads in (1, 2, 3)
    ]
    for outcome in outcomes[1:]:
        assert_same(outcome, outcomes[0], 1e-6)


@kinds
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backward": "fast"}, "`backward` must be"),
        ({"backward": -1}, "`backward` must be"),
        ({"backward": 1.5}, "`backward` must be"),
        ({"threads": 0}, "`threads` must be"),
        ({"activation": "softmax"}, "`activation` must be one of linear, tanh"),
        ({"reset_after": False}, "reset_after=True"),
        ({"recurrent_activation": "softplus"}, "`recurrent_activation` must be one of"),
    ],
)
def test_bad_arguments_are_refused(kind: str, options: dict[str, Any], text: str) -> None:
    if kind == "SimpleRNN" and {"reset_after", "recurrent_activation"} & options.keys():
        pytest.skip("an argument of GRU")
    with pytest.raises(ValueError, match=text):
        PAIRS[kind][1](4, **options)
