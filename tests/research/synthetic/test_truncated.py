"""Stretches of a recurrent net that end with a synthetic gradient, against the whole sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringar.parallel import Synthesizer, SyntheticBPTT
from tests.comparison import assert_all_close

pytestmark = pytest.mark.ranks(1)

SEQUENCES, STEPS, FEATURES = 4, 6, 2
layers = keras.layers


class Preset(keras.layers.Layer):
    """A synthesizer's only layer, which returns preset gradients, and never learns."""

    def __init__(self, shapes: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.gradients = [
            self.add_weight(shape=shape, initializer="zeros", trainable=False) for shape in shapes
        ]

    def call(self, inputs: Any) -> Any:
        return [0 * x + gradient for x, gradient in zip(inputs, self.gradients, strict=True)]


def data(sequences: int = SEQUENCES, steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(2)
    x = random.normal(size=(sequences, steps, FEATURES)).astype(np.float32)
    return x, np.cumsum(x, 1)[..., :1] / 4


def model(stretch: int, rnns: list[Any] | None = None, **options: Any) -> SyntheticBPTT:
    keras.utils.set_random_seed(3)
    net = SyntheticBPTT(
        rnns or [layers.LSTM(4), layers.GRU(3)], layers.Dense(1, name="head"), stretch, **options
    )
    net.build((None, None, FEATURES))
    net.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    return net


def gradients(net: SyntheticBPTT, x: Any, y: Any, ends: Sequence[int], states: Any = None) -> Any:
    """Of the sum of the mean losses of stretches: by the weights, and by the first states."""
    begin, total = 0, 0.0
    after = states = net._zeros(x) if states is None else states
    with tf.GradientTape() as tape:
        tape.watch(states)
        for end in ends:
            outputs, after = net._run(tf.constant(x[:, begin:end]), after, True)
            total += net.compute_loss(None, y[:, begin:end], outputs)
            begin = end
    return tape.gradient(total, [net.trainable_variables, states])


def test_with_the_true_gradient_a_stretch_knows_all_that_follows() -> None:
    """The gradient of a sequence is that of its first stretch so, and of the second alone."""
    x, y = data()
    shapes = [(SEQUENCES, 4), (SEQUENCES, 4), (SEQUENCES, 3)]
    state_inputs = [keras.Input(batch_shape=shape) for shape in shapes]
    preset = Preset(shapes)
    net = model(3, synthesizer=keras.Model(state_inputs, preset(state_inputs)))
    before = [np.array(v) for v in net.trainable_variables]
    middle = net._run(tf.constant(x[:, :3]), net._zeros(x), True)[1]
    second, of_states = gradients(net, x[:, 3:], y[:, 3:], [3], middle)
    total, _ = gradients(net, x, y, [3, 6])
    for variable, value in zip(preset.gradients, of_states, strict=True):
        variable.assign(value * SEQUENCES)  # a synthesizer predicts that of one example
    net.make_train_function()
    net._train_on(x[:, :3], y[:, :3], None, net._zeros(x), goes_on=True, has_past=False)
    for variable, old, *slopes in zip(net.trainable_variables, before, total, second, strict=True):
        np.testing.assert_allclose(variable, old - 0.1 * (slopes[0] - slopes[1]), atol=1e-6)


def test_without_a_synthesizer_it_is_plain_truncation() -> None:
    x, y = data()
    nets = [model(3, synthesizer="zero"), model(3)]  # the default begins with zeros
    for net in nets:
        before = [np.array(v) for v in net.trainable_variables]
        expected, _ = gradients(net, x[:, :3], y[:, :3], [3])
        net.make_train_function()
        net._train_on(x[:, :3], y[:, :3], None, net._zeros(x), goes_on=True, has_past=False)
        for variable, old, gradient in zip(net.trainable_variables, before, expected, strict=True):
            np.testing.assert_allclose(variable, old - 0.1 * gradient, atol=1e-6)
    assert nets[0].synthesizer is None


def test_the_synthesizer_learns_the_gradient_of_what_follows() -> None:
    """With fixed weights M(h) comes near to the true gradient, over two stretches."""
    x, y = data(64)
    net = model(2, [layers.GRU(3)], synthesizer_optimizer=keras.optimizers.Adam(0.03),
                synthesizer=Synthesizer(1, units=32))  # fmt: skip
    net.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=False)
    net.fit(x, y, batch_size=64, epochs=50, verbose=0)
    states = net._run(tf.constant(x[:, :2]), net._zeros(x), True)[1]
    _, (truth,) = gradients(net, x[:, 2:], y[:, 2:], [2, 4], states)
    assert net.synthesizer is not None
    (predicted,) = keras.tree.flatten(net.synthesizer(states, training=True))
    assert np.corrcoef(np.ravel(predicted), np.ravel(truth))[0, 1] > 0.7


def test_states_are_carried_on() -> None:
    """Batches that continue sequences are one long sequence."""
    x, y = data(SEQUENCES, 12)
    long, short = model(3), model(3, batch_size=SEQUENCES)
    long.fit(x, y, batch_size=SEQUENCES, verbose=0)
    for begin in (0, 6):
        short.train_on_batch(x[:, begin : begin + 6], y[:, begin : begin + 6])
    # The synthesizer of the second has one more example, that of the first states.
    assert_all_close(short.trainable_variables[:3], long.trainable_variables[:3], atol=1e-3)
    assert all(np.any(np.array(state) != 0) for state in short._carried)
    short.reset_states()
    assert all(np.all(np.array(state) == 0) for state in short._carried)


def test_other_cells_and_dtypes_and_a_shorter_last_stretch() -> None:
    """The loss of an epoch without learning is that of an evaluation."""
    x, y = data()
    cells = layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)])
    net = model(4, [cells, layers.GRU(3, dtype="mixed_bfloat16")])
    net.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=True)
    loss = net.fit(x, y, verbose=0).history["loss"][0]
    np.testing.assert_allclose(loss, net.evaluate(x, y, verbose=0), rtol=0.01)


def test_a_synthesizer_of_ones_own_is_no_part_of_the_model() -> None:
    """Its weights, losses and files are not those of the net."""
    synthesizer = keras.Sequential(
        [keras.Input((4,)), layers.Dense(4, kernel_regularizer="l2", kernel_initializer="ones")]
    )
    nets = [model(3, [layers.SimpleRNN(4)], synthesizer=choice) for choice in (synthesizer, "zero")]
    assert len(nets[0].variables) == len(nets[1].variables)
    assert nets[0].losses == []
    nets[0].fit(*data(), verbose=0)
    assert nets[0].synthesizer is synthesizer


def test_files_and_metrics(tmp_path: Path) -> None:
    x, y = data()
    net = model(4)
    net.compile("adam", "mse", metrics=["mae"], run_eagerly=True)
    weight = np.ones((SEQUENCES, STEPS))
    history = net.fit(x, y, batch_size=2, epochs=2, verbose=0, sample_weight=weight)
    assert set(history.history) == {"loss", "mae"}
    net.save(tmp_path / "net.keras")
    again = keras.models.load_model(tmp_path / "net.keras")
    np.testing.assert_array_equal(again.predict(x, verbose=0), net.predict(x, verbose=0))
    assert again.stretch == 4


def test_bad_input() -> None:
    dense, lstm = layers.Dense(3), layers.LSTM(3)
    for arguments, message in (
        (([dense], dense, 3), "`layers` must be recurrent layers"),
        (([], dense, 3), "`layers` must have a recurrent layer"),
        (([lstm], dense, 0), "`stretch` must be a positive whole number"),
        (([layers.LSTM(3, go_backwards=True)], dense, 3), "`layers` must run forward"),
        (([layers.Bidirectional(lstm)], dense, 3), "`layers` must be recurrent layers"),
        (([layers.ConvLSTM1D(3, 3, name="maps")], dense, 3), "Received: ConvLSTM1D maps"),
    ):
        with pytest.raises(ValueError, match=message):
            SyntheticBPTT(*arguments)
    for synthesizer in ("true", [dense]):
        with pytest.raises(ValueError, match="`synthesizer` must be a model"):
            SyntheticBPTT([lstm], dense, 3, synthesizer=synthesizer)
    misfit = keras.Sequential([keras.Input((3,)), layers.Dense(3)], name="wrong")
    with pytest.raises(ValueError, match=r"inputs of shape \[batch, 4\], \[batch, 4\], \[batch, 3"):
        model(3, synthesizer=misfit).fit(*data(), verbose=0)
    x, y = data()
    net = model(3, batch_size=SEQUENCES)
    for pair in ((x, y[:, -1]), (x, None), ({"x": x}, y)):
        with pytest.raises(ValueError, match="`(x|y)` must be a tensor .* time steps"):
            net.fit(*pair, verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have `batch_size` sequences"):
        net.fit(x[:3], y[:3], verbose=0)
    net.compile(keras.optimizers.SGD(0.1, loss_scale_factor=8.0), "mse")
    with pytest.raises(ValueError, match="`optimizer` must not scale the loss"):
        net.fit(x, y, verbose=0)
