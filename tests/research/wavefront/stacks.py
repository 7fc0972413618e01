"""Stacks of recurrent layers in pairs: Keras' layers one after the other, and a Wavefront."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ringar

PAIRS = {
    "R": (keras.layers.SimpleRNN, ringar.layers.ScanSimpleRNN),
    "G": (keras.layers.GRU, ringar.layers.ScanGRU),
    "L": (keras.layers.LSTM, ringar.layers.ScanLSTM),
}
BATCH, FEATURES = 3, 2


def layers(kinds: str, library: int, *, sequences: bool = True, **options: Any) -> list[Any]:
    """Keras' layers (0) or ringar's (1), by their letters, the lowest first."""
    last = len(kinds) - 1
    return [
        PAIRS[kind][library](4 + i % 3, return_sequences=sequences or i < last, **options)
        for i, kind in enumerate(kinds)
    ]


def set_weights(stack: Sequence[Any], features: int = FEATURES) -> None:
    """Builds layers, and gives them weights that depend on nothing but their order."""
    rng, shape = np.random.default_rng(1), (None, None, features)
    for layer in stack:
        if not layer.built:
            layer.build(shape)
        layer.set_weights([0.5 * rng.normal(size=w.shape) for w in layer.get_weights()])
        shape = (None, None, layer.units)


def wavefront(kinds: str, chunk: int | None, **options: Any) -> Any:
    """A Wavefront in float64 that returns states, too."""
    options_of_layers = {"sequences": options.pop("sequences", True)}
    stack_layers = layers(kinds, 1, dtype="float64", **options_of_layers)
    stack = ringar.parallel.Wavefront(stack_layers, chunk, return_state=True, **options)
    stack.build((None, None, FEATURES))
    set_weights(stack.layers)
    return stack


def inputs(steps: int, kind: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Sequences, and a mask that begins with masked steps in one example, ends so in another."""
    rng = np.random.default_rng(2)
    mask = rng.random((BATCH, steps)) > 0.4
    mask[0, : steps // 2], mask[1, steps // 2 :], mask[2, :] = False, False, True
    return rng.normal(size=(BATCH, steps, FEATURES)), mask


def states(kinds: str) -> list[np.ndarray]:
    """States before the first step, in the order of the layers."""
    rng = np.random.default_rng(3)
    return [
        rng.normal(size=(BATCH, 4 + i % 3))
        for i, kind in enumerate(kinds)
        for _ in range(2 if kind == "L" else 1)
    ]


def gradients(call: Any, weights: list[Any], x: Any, initial: Sequence[Any]) -> list[list[Any]]:
    """Outputs with states, gradients of inputs and initial states, and those of the weights."""
    x, initial = tf.constant(x), [tf.constant(state) for state in initial]
    with tf.GradientTape() as tape:
        tape.watch([x, *initial])
        outputs = call(x, initial)
        terms = [tf.reduce_sum(tf.sin(out) * (1.0 + i)) for i, out in enumerate(outputs)]
        loss = tf.add_n(terms)
    slopes = tape.gradient(loss, [x, *initial, *[weight.value for weight in weights]])
    count = 1 + len(initial)
    return [outputs, slopes[:count], slopes[count:]]


def expected(kinds: str, x: Any, mask: Any, initial: Sequence[Any], sequences: bool) -> Any:
    """What Keras' layers compute one after the other, as NumPy arrays."""
    peers = layers(kinds, 0, sequences=sequences, dtype="float64", return_state=True)
    set_weights(peers)
    weights = [weight for layer in peers for weight in layer.trainable_variables]
    mask = None if mask is None else tf.constant(mask)

    def run() -> list[list[Any]]:
        def call(x: Any, states: list[Any]) -> list[Any]:
            left, last = list(states), []
            for layer in peers:
                initial_states = [left.pop(0) for _ in layer.state_size] if left else None
                x, *after = layer(x, initial_state=initial_states, mask=mask)
                last += after
            return [x, *last]

        return gradients(call, weights, x, initial)

    is_short = x.shape[1] * len(kinds) < 60  # tracing takes longer than so many steps
    return tf.nest.map_structure(
        lambda tensor: tensor.numpy(), (run if is_short else tf.function(run))()
    )
