"""Outputs, states and gradients of a stack in chunks are those of Keras' layers, on any ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests import one_process
from tests.comparison import assert_all_close
from tests.parallel.conftest import OpenGrid
from tests.plugin import fast_if
from tests.research.wavefront import stacks

pytestmark = pytest.mark.usefixtures("initialized")

#: Kinds of layers, steps, chunk, whether the last layer returns sequences, mask, initial states.
Case = tuple[str, int, int | None, bool, bool, bool]
CASES: list[Case] = [
    ("LGR", 7, 3, True, True, True),
    ("G", 1, 1, False, False, False),
    ("GGLL", 9, 2, False, True, False),
    ("RRRRRRRR", 5, 1, True, False, True),
    ("GL", 23, 7, True, False, False),
]
MORE: list[Case] = [
    ("LG", 7, None, True, True, True),
    ("RGLRG", 10, 4, False, False, True),
    ("GGGGGGGG", 13, 5, True, True, False),
    ("LL", 300, 37, True, True, True),
    ("LGRLGRLG", 300, 31, True, False, False),
    ("G", 300, 299, False, False, True),
]


def results_of(case: Case, way: str) -> list[list[Any]]:
    kinds, steps, chunk, sequences, masked, starts = case
    x, mask = stacks.inputs(steps)
    initial = stacks.states(kinds) if starts else []
    stack = stacks.wavefront(kinds, chunk, sequences=sequences)

    def run() -> list[list[Any]]:
        mask_of_steps = tf.constant(mask) if masked else None
        return stacks.gradients(
            lambda x, states: stack(x, initial_state=states or None, mask=mask_of_steps),
            stack.trainable_variables,
            x,
            initial,
        )

    outputs, slopes, weights = (run if way == "eager" else tf.function(run))()
    return [outputs, slopes, [ringar.allreduce(gradient) for gradient in weights]]


@pytest.mark.parametrize(
    ("case", "way"),
    [
        *(fast_if(way == "graph" or case == CASES[0], case, way)
          for case in CASES for way in ("graph", "eager")),
        *(fast_if(case == MORE[0], case, "graph") for case in MORE),
    ],
)  # fmt: skip
def test_as_keras_layer_by_layer(case: Case, way: str, open_grid: OpenGrid, size: int) -> None:
    kinds, steps, _, sequences, masked, starts = case
    open_grid(size)
    x, mask = stacks.inputs(steps)
    initial = stacks.states(kinds) if starts else []
    expected = one_process.compute(
        lambda: stacks.expected(kinds, x, mask if masked else None, initial, sequences)
    )
    for tensors, arrays in zip(results_of(case, way), expected, strict=True):
        assert_all_close(tensors, arrays, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("chunk", [None, 2])
def test_float32_and_mixed_precision(chunk: int | None, open_grid: OpenGrid, size: int) -> None:
    open_grid(size)
    x = np.float32(stacks.inputs(6)[0])
    results = {}
    for dtype in ("float32", "mixed_bfloat16"):
        cells = stacks.layers("GL", 1, dtype=dtype)
        stack = ringar.parallel.Wavefront(cells, chunk)
        stack.build(x.shape)
        stacks.set_weights(stack.layers)
        results[dtype] = stack(tf.constant(x))
        plain = keras.Sequential(stacks.layers("GL", 1))
        plain.build(x.shape)
        plain.set_weights(stack.get_weights())
    assert results["mixed_bfloat16"].dtype == tf.bfloat16
    np.testing.assert_allclose(results["float32"], plain(x), rtol=1e-5, atol=1e-6)
    loose = tf.cast(results["mixed_bfloat16"], tf.float32)
    np.testing.assert_allclose(loose, results["float32"], atol=0.05)


def test_dropout_has_one_mask_for_all_chunks_and_ranks(open_grid: OpenGrid, size: int) -> None:
    open_grid(size)
    x = tf.constant(stacks.inputs(8)[0])
    results = []
    for chunk in (3, 8):
        keras.utils.set_random_seed(5)
        cells = stacks.layers("GR", 1, dtype="float64", dropout=0.5)
        stack = ringar.parallel.Wavefront(cells, chunk)
        stack.build(x.shape)
        stacks.set_weights(stack.layers)
        results.append(stack(x, training=True))
        assert np.abs(stack(x) - results[-1]).max() > 1e-3
    np.testing.assert_allclose(results[0], results[1], rtol=1e-9)
    np.testing.assert_array_equal(ringar.broadcast(results[0], 0), results[0])


@pytest.mark.parametrize("way", ["eager", "graph", "tape outside", "tape outside of both"])
def test_the_input_of_a_model_may_be_the_output_of_another(
    way: str, open_grid: OpenGrid, size: int
) -> None:
    open_grid(size)
    x = tf.constant(stacks.inputs(5)[0])
    groups = [stacks.layers("GGG", 1, dtype="float64") for _ in range(2)]
    models = [
        # Without the dtype Keras would cast the inputs, and the stack would not read the model's.
        keras.Sequential(
            [keras.Input((5, features), dtype="float64"), ringar.parallel.Wavefront(cells, 2)]
        )
        for cells, features in zip(groups, (stacks.FEATURES, 6), strict=True)
    ]
    for cells, features in zip(groups, (stacks.FEATURES, 6), strict=True):
        stacks.set_weights(cells, features)
    weights = [weight for model in models for weight in model.trainable_variables]

    def run(calls: list[Any]) -> list[Any]:
        with tf.GradientTape() as tape:
            outputs = x
            for call in calls:
                outputs = call(outputs)
            loss = tf.reduce_sum(tf.sin(outputs))
        return [loss, *tape.gradient(loss, [weight.value for weight in weights])]

    expected = run([layer for cells in groups for layer in cells])
    functions = {"tape outside": 1, "tape outside of both": 2}.get(way, 0)
    calls = [tf.function(model.__call__) for model in models[:functions]] + models[functions:]
    run_stacks = tf.function(run) if way == "graph" else run
    loss, *slopes = run_stacks(calls)
    result = [loss, *[ringar.allreduce(gradient) for gradient in slopes]]
    assert_all_close(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.ranks(2)
def test_the_gradient_of_inputs_that_no_tape_watches_is_not_sent(
    open_grid: OpenGrid, size: int
) -> None:
    """A step as Keras makes it: the tape is in the function that calls the model."""
    open_grid(size)
    stack = ringar.parallel.Wavefront(stacks.layers("GG", 1, dtype="float64"), 2, name="economy")
    model = keras.Sequential([keras.Input((5, stacks.FEATURES), dtype="float64"), stack])

    @tf.function
    def step(x: tf.Tensor) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        weights = [weight.value for weight in model.trainable_variables]
        *slopes, of_inputs = tape.gradient(loss, [*weights, x])
        assert of_inputs is None, "not a part of it"
        return slopes

    tf.function(lambda x: step(x))(tf.constant(stacks.inputs(5)[0]))
    names = [name for name in ringar.stats("name") if "economy" in name]
    assert any(name.endswith("/outputs") for name in names)
    assert not any(name.endswith("/gradient") for name in names)


@pytest.mark.ranks(1)
def test_compiled_and_with_unknown_steps() -> None:
    stack = stacks.wavefront("GL", None)
    x = tf.constant(stacks.inputs(5)[0])
    expected = stack(x)
    compiled = tf.function(stack.__call__, jit_compile=True)(x)
    signature = [tf.TensorSpec([None, None, 2], x.dtype)]
    function = tf.function(stack.__call__, input_signature=signature)
    for results in (compiled, function(x)):
        assert_all_close(results, expected, rtol=1e-9)
