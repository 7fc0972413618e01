"""Sequences that are cut over ranks: every rank has some of the steps, all get the whole gradient.

Every rank knows the whole sequences and computes what is expected by itself, with Keras' layer.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

PAIRS = {
    "SimpleRNN": (keras.layers.SimpleRNN, ringar.layers.ScanSimpleRNN),
    "GRU": (keras.layers.GRU, ringar.layers.ScanGRU),
}
LENGTHS = (5, 1, 7, 4)  # steps of each rank
UNITS, BATCH, FEATURES = 6, 3, 2

kinds = pytest.mark.parametrize("kind", PAIRS)
ways = pytest.mark.parametrize("way", ["eager", "graph"])


def sequences_of(size: int, dtype: str = "float64") -> np.ndarray:
    shape = (BATCH, sum(LENGTHS[:size]), FEATURES)
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def part_of(array: np.ndarray, rank: int, size: int) -> Any:
    return np.split(array, np.cumsum(LENGTHS[:size])[:-1], axis=1)[rank]


def layers_of(kind: str, dtype: str = "float64", **options: Any) -> tuple[Any, Any]:
    """Keras' layer, and one whose sequences are cut, with the same weights."""
    peer = PAIRS[kind][0](
        UNITS, dtype=dtype, return_sequences=options.get("return_sequences", False)
    )
    layer = PAIRS[kind][1](UNITS, dtype=dtype, process_set=ringar.global_process_set, **options)
    rng = np.random.default_rng(1)
    for member in (peer, layer):
        member.build((None, None, FEATURES))
    peer.set_weights([0.5 * rng.normal(size=weight.shape) for weight in peer.get_weights()])
    layer.set_weights(peer.get_weights())
    return peer, layer


def gradients(layer: Any, x: Any, factors: Any, initial: Any, way: str) -> list[Any]:
    """Outputs, gradients of inputs and initial state, and those of the weights."""
    x, initial = tf.constant(x), tf.constant(initial)

    def run(x: tf.Tensor, initial: tf.Tensor) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch([x, initial])
            outputs = layer(x, initial_state=initial)
            loss = tf.reduce_sum(outputs**2 * factors)
        weights = [weight.value for weight in layer.trainable_variables]
        return [outputs, *tape.gradient(loss, [x, initial, *weights])]

    return (run if way == "eager" else tf.function(run))(x, initial)


def assert_close(received: Any, expected: Any) -> None:
    np.testing.assert_allclose(received, expected, rtol=1e-8, atol=1e-9)


@kinds
@pytest.mark.parametrize(
    ("way", "backward"),
    [
        fast_if((way == "graph") == (backward == "scan"), way, backward)
        for way in ("eager", "graph")
        for backward in ("serial", "scan")
    ],
)
def test_states_of_all_steps(kind: str, way: str, backward: str, rank: int, size: int) -> None:
    peer, layer = layers_of(kind, return_sequences=True, backward=backward)
    x = sequences_of(size)
    factors = np.random.default_rng(2).normal(size=(*x.shape[:2], UNITS))
    initial = np.full((BATCH, UNITS), 0.3)
    outputs, d_x, d_initial, *d_weights = gradients(peer, x, factors, initial, "eager")
    received = gradients(layer, part_of(x, rank, size), part_of(factors, rank, size), initial, way)
    assert_close(received[0], part_of(outputs.numpy(), rank, size))
    assert_close(received[1], part_of(d_x.numpy(), rank, size))
    assert_close(received[2], d_initial if rank == 0 else np.zeros_like(d_initial))
    for gradient, expected in zip(received[3:], d_weights, strict=True):
        assert_close(ringar.allreduce(gradient, op=ringar.Sum), expected)


@kinds
@ways
def test_the_last_state_is_everybodys(kind: str, way: str, rank: int, size: int) -> None:
    peer, layer = layers_of(kind)
    x = sequences_of(size)
    factors = np.random.default_rng(2).normal(size=(BATCH, UNITS))
    initial = np.full((BATCH, UNITS), 0.3)
    outputs, d_x, _, *d_weights = gradients(peer, x, factors, initial, "eager")
    received = gradients(layer, part_of(x, rank, size), factors, initial, way)
    assert_close(received[0], outputs)
    # All ranks have the same loss: what comes back is that of all of them, for an average.
    assert_close(received[1], size * part_of(d_x.numpy(), rank, size))
    for gradient, expected in zip(received[3:], d_weights, strict=True):
        assert_close(ringar.allreduce(gradient, op=ringar.Average), expected)


@kinds
def test_training_is_that_of_one_process(kind: str, rank: int, size: int) -> None:
    x = sequences_of(size, "float32")
    y = x.sum(axis=(1, 2))
    losses = []
    for layer in layers_of(kind, "float32"):
        keras.utils.set_random_seed(3)
        cut = isinstance(layer, PAIRS[kind][1])
        part = part_of(x, rank, size) if cut else x
        model = keras.Sequential([keras.Input(part.shape[1:]), layer, keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05)
        model.compile(
            ringar.DistributedOptimizer(optimizer) if cut else optimizer, "mse", jit_compile=False
        )
        history = model.fit(part, y, batch_size=BATCH, epochs=6, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.ranks(2, 3)
def test_a_process_set_may_have_another_order(rank: int, size: int) -> None:
    members = [1, 0] if size == 2 else [2, 1]
    ranks = ringar.add_process_set(members)
    try:
        if rank in members:
            peer, layer = layers_of("SimpleRNN")
            layer.process_set = ranks
            x = sequences_of(2)
            expected = peer(x)
            assert_close(layer(part_of(x, ranks.rank(), 2)), expected)
    finally:
        ringar.remove_process_set(ranks)


@pytest.mark.ranks(2)
def test_two_ranks_multiply_no_matrices(rank: int) -> None:
    """Products of Jacobians may overflow where no vector of the chain does."""
    layer = ringar.layers.ScanSimpleRNN(
        2, activation=None, use_bias=False, process_set=ringar.global_process_set
    )
    layer.build((None, None, 1))
    layer.set_weights([np.zeros((1, 2)), np.diag([1e6, 0.5])])
    initial = tf.zeros((1, 2))
    with tf.GradientTape() as tape:
        tape.watch(initial)
        loss = layer(tf.zeros((1, 16, 1)), initial_state=initial)[0, 1]
    expected = 2 * 0.5**32 if rank == 0 else 0.0  # both ranks have the loss
    np.testing.assert_allclose(tape.gradient(loss, initial), [[0.0, expected]], rtol=1e-6)


@kinds
@pytest.mark.parametrize("options", [{"stateful": True}, {"go_backwards": True}, {"dropout": 0.5}])
def test_what_has_another_order_is_refused(kind: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        PAIRS[kind][1](4, process_set=ringar.global_process_set, **options)


def test_a_process_set_must_be_one() -> None:
    ranks: Any = [0, 1]
    with pytest.raises(TypeError, match="`process_set` must be a ringar.ProcessSet"):
        ringar.layers.ScanGRU(4, process_set=ranks)


@kinds
def test_masks_are_refused(kind: str) -> None:
    _, layer = layers_of(kind, "float32")
    with pytest.raises(ValueError, match="mask"):
        layer(np.ones((2, 3, FEATURES), "float32"), mask=np.ones((2, 3), bool))
