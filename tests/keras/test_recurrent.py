"""The Scan layers are Keras' SimpleRNN, GRU and LSTM: outputs, gradients, weights, masks."""

from __future__ import annotations

import functools
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
    "LSTM": (keras.layers.LSTM, ringar.layers.ScanLSTM),
}
SCANNED = ("SimpleRNN", "GRU")
kinds = pytest.mark.parametrize("kind", PAIRS)
ways_back = pytest.mark.parametrize(
    ("kind", "backward"),
    [
        *(fast_if(False, kind, "auto") for kind in SCANNED),
        *itertools.product(SCANNED, ("scan", 2)),
        ("LSTM", "auto"),
    ],
)
serial_or_scan = pytest.mark.parametrize(
    ("kind", "backward"), [*itertools.product(SCANNED, ("serial", "scan")), ("LSTM", "serial")]
)


def build(
    kind: str, units: int = 5, *, features: int = 3, options: Any = None, **options_of_ringar: Any
) -> tuple[Any, Any]:
    """Keras' layer and ringar's, with the same weights, none of them 0."""
    options = options or {}
    peer, layer = PAIRS[kind]
    pair = peer(units, **options), layer(units, **options, **options_of_ringar)
    rng = np.random.default_rng(units)
    for member in pair:
        member.build((4 if member.stateful else None, None, features))
    scale = 1 / np.sqrt(units + features)
    pair[0].set_weights([scale * rng.normal(size=w.shape) for w in pair[0].get_weights()])
    pair[1].set_weights(pair[0].get_weights())
    return pair


def initial_states(kind: str, batch: int, units: int) -> list[tf.Tensor]:
    values = (0.3, -0.8) if kind == "LSTM" else (0.3,)
    return [tf.fill((batch, units), value) for value in values]


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


def assert_same(received: list[Any], expected: list[Any], tolerance: float = 1e-4) -> None:
    assert len(received) == len(expected)
    for index, (result, other) in enumerate(zip(received, expected, strict=True)):
        result, other = np.asarray(result, np.float64), np.asarray(other, np.float64)
        assert result.shape == other.shape
        scale = max(1e-3, np.abs(other).max(initial=0.0))
        assert np.abs(result - other).max(initial=0.0) <= tolerance * scale, f"result {index}"


@pytest.mark.parametrize("way", ["eager", "function", "asked for later"])
@kinds
def test_gradients_of_weights_without_those_of_inputs(kind: str, way: str) -> None:
    pair = build(kind, 20, features=40)
    x = sequences(3, 6, 40)
    gradients = []
    for layer in pair:

        def run(x: tf.Tensor, layer: Any = layer) -> tuple[Any, Any]:
            with tf.GradientTape() as tape:  # watches the weights, not the inputs
                loss = tf.reduce_sum(tf.sin(layer(x)))
            weights = tape.gradient(loss, [w.value for w in layer.trainable_variables])
            return loss, [tf.stop_gradient(gradient) for gradient in weights]

        function = run if way == "eager" else tf.function(run, autograph=False)
        if way == "asked for later":  # by a tape that the trace does not know
            function(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss, weights = function(x)
            gradients.append([loss, *weights, tape.gradient(loss, x)])
        else:
            loss, weights = function(x)
            gradients.append([loss, *weights])
    for expected, received in zip(*gradients, strict=True):
        np.testing.assert_allclose(received, expected, rtol=1e-4, atol=1e-5)


@functools.cache
def results_of_keras(
    kind: str, units: int, batch: int, steps: int, sequences_out: bool
) -> tuple[list[Any], list[Any]]:
    """Those without an initial state, and with one: the same for each way back."""
    options = {"return_sequences": sequences_out, "return_state": True}
    peer, _ = build(kind, units, options=options)
    x, initial = sequences(batch, steps), initial_states(kind, batch, units)
    return results(peer, x), results(peer, x, initial_state=initial)


@ways_back
@pytest.mark.parametrize("sequences_out", [False, True])
def test_results_are_those_of_keras(kind: str, backward: Any, sequences_out: bool) -> None:
    options = {"return_sequences": sequences_out, "return_state": True}
    for units, batch, steps in ((1, 1, 1), (5, 3, 7), (20, 17, 40), (33, 2, 9), (64, 5, 12)):
        _, layer = build(kind, units, options=options, backward=backward)
        x, initial = sequences(batch, steps), initial_states(kind, batch, units)
        of_zero, of_initial = results_of_keras(kind, units, batch, steps, sequences_out)
        assert_same(results(layer, x), of_zero)
        assert_same(results(layer, x, initial_state=initial), of_initial)


@kinds
@pytest.mark.parametrize("steps", [1000, 3000])
def test_long_sequences(kind: str, steps: int) -> None:
    peer, layer = build(kind, 20, features=1, options={"return_sequences": True})
    x = sequences(4, steps, 1)
    expected = results(peer, x, compiled=True)
    for backward in (0, 62) if kind in SCANNED else (0,):
        layer._levels = backward
        assert_same(results(layer, x, compiled=False), expected)


@ways_back
@pytest.mark.parametrize("zero", [False, True])
def test_masks(kind: str, backward: Any, zero: bool) -> None:
    x = sequences(6, 9)
    mask = np.random.default_rng(3).random((6, 9)) < 0.6
    mask[0], mask[1], mask[2, :4], mask[3, 5:] = True, False, False, False
    initial = initial_states(kind, 6, 5)
    for sequences_out in (False, True):
        options = {"return_sequences": sequences_out, "return_state": True}
        peer, layer = build(kind, options=options, backward=backward)
        for member in (peer, layer):
            member.zero_output_for_mask = zero
        call = {"mask": tf.constant(mask), "initial_state": initial}
        assert_same(results(layer, x, **call), results(peer, x, **call))


@serial_or_scan
@pytest.mark.parametrize("compiled", [False, True])
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


@pytest.mark.parametrize(
    ("kind", "backward", "options"),
    [
        fast_if(backward != "serial" or "go_backwards" in options, kind, backward, options)
        for options in OPTIONS
        for kind, backward in [*itertools.product(SCANNED, ("serial", "scan")), ("LSTM", "auto")]
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


@pytest.mark.parametrize(("kind", "backward"), [("GRU", "scan"), ("LSTM", "serial")])
@pytest.mark.parametrize("gates", ["tanh", "relu", "hard_sigmoid", None])
def test_gates_may_have_another_activation(kind: str, backward: str, gates: str | None) -> None:
    peer, layer = build(kind, options={"recurrent_activation": gates}, backward=backward)
    assert_same(results(layer, sequences(3, 6)), results(peer, sequences(3, 6)))


@kinds
def test_states_may_be_kept(kind: str) -> None:
    pair = build(kind, options={"stateful": True})
    x = sequences(4, 6)
    outputs = []
    for member in pair:
        model = keras.Sequential([keras.Input(batch_shape=(4, 6, 3)), member])
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
        ("LSTM", "serial"),
        *(
            fast_if(pair in (("SimpleRNN", "serial"), ("GRU", "scan")), *pair)
            for pair in itertools.product(SCANNED, ["serial", "scan"])
        ),
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
    backward = 3 if kind in SCANNED else "serial"
    peer, layer = build(kind, backward=backward, threads=2)
    x = sequences(4, 6)
    model = keras.Sequential([keras.Input((6, 3)), layer])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (loaded.layers[0].backward, loaded.layers[0].threads) == (backward, 2)
    assert_same([loaded(x)], [peer(x)])
    fresh = build(kind, 5)
    for member in fresh:
        member.set_weights([0 * weight for weight in member.get_weights()])
    for source, target in ((layer, fresh[0]), (peer, fresh[1])):
        keras.Sequential([keras.Input((6, 3)), source]).save_weights(tmp_path / "a.weights.h5")
        other = keras.Sequential([keras.Input((6, 3)), target])
        other.load_weights(tmp_path / "a.weights.h5")
        assert_same([other(x)], [peer(x)])


@kinds
def test_threads_change_nothing_but_rounding(kind: str) -> None:
    x, backward = sequences(5, 50), "scan" if kind in SCANNED else "serial"
    outcomes = [
        results(build(kind, 8, backward=backward, threads=threads)[1], x) for threads in (1, 2, 3)
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
    extra_options = {"SimpleRNN": set(), "GRU": {"reset_after", "recurrent_activation"}}
    extra_options["LSTM"] = {"recurrent_activation"}
    if {"reset_after", "recurrent_activation"} & options.keys() - extra_options[kind]:
        pytest.skip(f"no argument of {kind}")
    with pytest.raises(ValueError, match=text):
        PAIRS[kind][1](4, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backward": "scan"}, '`backward` must be "auto" or "serial"'),
        ({"backward": 2}, '`backward` must be "auto" or "serial"'),
        ({"process_set": ringar.global_process_set}, "`process_set` must be None"),
    ],
)
def test_an_lstm_has_no_scan(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ringar.layers.ScanLSTM(4, **options)


def test_an_lstm_begins_with_the_weights_of_keras() -> None:
    for unit_forget_bias in (True, False):
        weights = []
        for kind in PAIRS["LSTM"]:
            layer = kind(5, unit_forget_bias=unit_forget_bias, kernel_initializer="ones")
            layer.build((None, None, 3))
            weights.append([w for w in layer.get_weights() if w.shape != (5, 20)])  # drawn
        assert_same(weights[1], weights[0], 0.0)
        np.testing.assert_array_equal(weights[1][1][5:10], float(unit_forget_bias))


@pytest.mark.parametrize("steps", [1, 2, 47, 300])
def test_an_lstm_of_any_length(steps: int) -> None:
    options = {"return_sequences": True, "return_state": True}
    peer, layer = build("LSTM", 19, options=options)
    x, initial = sequences(5, steps), initial_states("LSTM", 5, 19)
    mask = np.random.default_rng(steps).random((5, steps)) < 0.8
    for call in ({"initial_state": initial}, {"mask": tf.constant(mask)}):
        expected = results(peer, x, compiled=False, **call)
        assert_same(results(layer, x, compiled=False, **call), expected, 1e-5)


def test_each_state_of_an_lstm_has_a_gradient() -> None:
    """Of a loss of one of them, or of one output, alone: the others are absent or 0."""
    x, initial = sequences(3, 7), initial_states("LSTM", 3, 5)
    for sequences_out in (False, True):
        options = {"return_sequences": sequences_out, "return_state": True}
        peer, layer = build("LSTM", options=options)
        for index in range(3):
            gradients = []
            for member in (layer, peer):
                with tf.GradientTape() as tape:
                    tape.watch([x, *initial])
                    loss = tf.reduce_sum(tf.sin(member(x, initial_state=initial)[index]))
                gradients.append(tape.gradient(loss, [x, *initial]))
            assert_same(gradients[0], gradients[1], 1e-5)


def test_gradients_of_an_lstm_are_what_finite_differences_say() -> None:
    _, layer = build("LSTM", 4, options={"return_sequences": True, "return_state": True,
                                         "dtype": "float64"})  # fmt: skip
    rng = np.random.default_rng(0)
    mask = tf.constant(rng.random((2, 6)) < 0.7)
    sources = [rng.normal(size=shape) for shape in ((2, 6, 3), (2, 4), (2, 4))]

    def loss(*values: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        x, *initial = (tf.constant(value) for value in values)
        with tf.GradientTape() as tape:
            tape.watch([x, *initial])
            outputs = layer(x, initial_state=initial, mask=mask)
            total = tf.add_n([_weighed(output, i) for i, output in enumerate(outputs)])
        weights = [weight.value for weight in layer.trainable_variables]
        return total, tape.gradient(total, [x, *initial, *weights])

    weights = layer.get_weights()
    _, gradients = loss(*sources)
    for index, gradient in enumerate(gradients):
        array = [*sources, *weights][index]
        for at in rng.choice(array.size, min(array.size, 6), replace=False):
            saved, sums = array.flat[at], []
            for step in (1e-6, -1e-6):
                array.flat[at] = saved + step
                layer.set_weights(weights)
                sums.append(float(loss(*sources)[0]))
            array.flat[at] = saved
            layer.set_weights(weights)
            difference = (sums[0] - sums[1]) / 2e-6
            assert abs(difference - gradient.numpy().flat[at]) < 1e-7, f"gradient {index}"
