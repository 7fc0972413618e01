"""Errors of stacks, which name the layer; ranks that differ all raise one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.parallel.conftest import OpenGrid
from tests.research.wavefront import stacks

pytestmark = pytest.mark.usefixtures("initialized")

OPTIONS = {"return_sequences": False, "use_bias": False, "dropout": 0.5}
SHAPE = "shape of the inputs"
SETTINGS = [
    *("chunk", "number of layers", "kind of layers", "activations", "costs", SHAPE),
    *OPTIONS,
]


def gru(**options: Any) -> Any:
    return ringar.layers.ScanGRU(4, **{"return_sequences": True, "name": "odd", **options})


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (list, "`layers` must be a list of .* at least one"),
        (lambda: None, "`layers` must be a list of"),
        (lambda: [keras.layers.GRU(4)], 'layer 0 is a GRU "gru.*ScanGRU.from_config'),
        (lambda: [keras.layers.Dense(4)], "layer 0 is a Dense"),
    ],
)
def test_what_is_no_stack(layers: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ringar.parallel.Wavefront(layers())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"return_sequences": False}, "Layer 0 of a Wavefront, odd, must not have return_seq"),
        ({"return_state": True}, "must not have return_state=True: pass it to the Wavefront"),
        ({"stateful": True}, "must not have stateful=True"),
        ({"go_backwards": True}, "must not have go_backwards=True"),
        ({"recurrent_dropout": 0.5}, "must not have dropout for each gate or step"),
        ({"activity_regularizer": "l2"}, "must not have an activity regularizer"),
        ({"dtype": "float64"}, "must have one dtype. Received: odd of float64"),
    ],
)
def test_layers_that_cannot_be_stacked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ringar.parallel.Wavefront([gru(**options), gru()])


def test_a_layer_that_was_built_for_other_inputs() -> None:
    layer = gru()
    layer.build((None, None, 3))
    stack = ringar.parallel.Wavefront([gru(), layer])
    with pytest.raises(ValueError, match="Layer 1 of a Wavefront, odd, .* 4 feat.* built for 3"):
        stack.build((None, 6, 2))


def test_a_layer_twice() -> None:
    layer = gru()
    with pytest.raises(ValueError, match="different layers"):
        ringar.parallel.Wavefront([layer, layer])


@pytest.mark.parametrize("chunk", [0, -3, 2.5, True, "auto"])
def test_a_chunk_that_is_no_number_of_steps(chunk: Any) -> None:
    with pytest.raises(ValueError, match="`chunk` must be a number of steps, 1 or more"):
        ringar.parallel.Wavefront([gru()], chunk)


def test_inputs_and_states_that_do_not_fit() -> None:
    stack = ringar.parallel.Wavefront([gru()], 3)
    with pytest.raises(ValueError, match=r"must be sequences.*\(4, 5\)"):
        stack.build((4, 5))
    with pytest.raises(ValueError, match="`plan` needs a Wavefront that is built"):
        stack.plan(10)
    stack = stacks.wavefront("GL", 3)
    x = tf.constant(stacks.inputs(5)[0])
    zeros = [tf.zeros([3, 5], x.dtype)] * 2
    for states in ([], [tf.zeros([3, 4])], [tf.zeros([2, 4]), *zeros], [tf.zeros([]), *zeros]):
        received = re.escape(str([tuple(state.shape) for state in states]))
        with pytest.raises(ValueError, match=rf"`initial_state` .* Received: {received}$"):
            stack.call(x, initial_state=states)
    with pytest.raises(ValueError, match=r"`mask` must .* shape: \(3, 5\). Received: \(3, 4\)"):
        stack(x, mask=tf.ones([3, 4], tf.bool))
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 2"):
        stack(x[..., :1])
    signature = [tf.TensorSpec([None, None, 2], x.dtype)]
    function = tf.function(stack.__call__, input_signature=signature)
    with pytest.raises(ValueError, match="number of steps of .* must be known"):
        function(x)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("setting", SETTINGS)
def test_ranks_that_disagree(
    setting: str, open_grid: OpenGrid, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_grid(size)
    odd = rank == size - 1
    monkeypatch.setenv("RINGAR_CALIBRATION", "auto" if odd and setting == "costs" else "off")
    layers = [gru(activation="relu" if odd and setting == "activations" else "tanh")]
    if odd and setting in OPTIONS:
        layers = [gru(**{setting: OPTIONS[setting]})]
    if odd and setting == "kind of layers":
        layers = [ringar.layers.ScanLSTM(4, return_sequences=True)]
    if odd and setting == "number of layers":
        layers.append(gru())
    stack = ringar.parallel.Wavefront(layers, 4 if odd and setting == "chunk" else 3)
    with pytest.raises(ValueError, match=f"Wavefront: expected the same {setting} on every rank"):
        stack.build((None, 5 if odd and setting == SHAPE else 6, 2))
    assert ringar.allreduce(1.0, ringar.Sum) == size  # all go on


@pytest.mark.ranks(2)
def test_ranks_with_different_examples(open_grid: OpenGrid, rank: int, size: int) -> None:
    grid = open_grid(size)
    model = keras.Sequential([keras.Input((6, 2)), ringar.parallel.Wavefront([gru()], 3)])
    model.compile(ringar.DistributedOptimizer("sgd", grid=grid), "mse", jit_compile=False)
    x = np.random.default_rng(rank).normal(size=(8, 6, 2)).astype("float32")
    with pytest.raises(ValueError, match="must be the same on every rank of a model group"):
        model.fit(x, tf.zeros([8, 6, 4]), verbose=0, callbacks=[ringar.callbacks.Distributed()])


@pytest.mark.ranks(2)
def test_ranks_with_different_words(open_grid: OpenGrid, rank: int, size: int) -> None:
    grid = open_grid(size)
    embedding = keras.layers.Embedding(9, 2)
    stack = ringar.parallel.Wavefront([gru()], 3)
    model = keras.Sequential([keras.Input((6,)), embedding, stack])
    model.compile(ringar.DistributedOptimizer("sgd", grid=grid), "mse", run_eagerly=True)
    words = np.full((8, 6), rank)
    with pytest.raises(ValueError, match="must be the same on every rank .* first batches"):
        model.fit(words, tf.zeros([8, 6, 4]), verbose=0, callbacks=[ringar.callbacks.Distributed()])


@pytest.mark.ranks(2)
def test_an_optimizer_whose_ranks_take_steps_of_their_own(open_grid: OpenGrid, size: int) -> None:
    open_grid(size)
    model = keras.Sequential([keras.Input((6, 2)), ringar.parallel.Wavefront([gru()], 3)])
    model.compile(ringar.LocalSGD("sgd", 2), "mse", jit_compile=False)
    with pytest.raises(ValueError, match="combined in every step; received no .*grid=grid"):
        model.fit(tf.zeros([8, 6, 2]), tf.zeros([8, 6, 4]), verbose=0,
                  callbacks=[ringar.callbacks.Distributed()])  # fmt: skip


@pytest.mark.ranks(2)
def test_an_optimizer_without_the_grid(open_grid: OpenGrid) -> None:
    """Its ranks would draw dropout of their own, and would be told to shard the data."""
    open_grid(2)
    layers = [gru(name="first"), gru(name="second")]
    wavefront = ringar.parallel.Wavefront(layers, name="stack")
    model = keras.Sequential([keras.Input((6, 3)), wavefront, keras.layers.Dense(2)])
    model.compile(ringar.DistributedOptimizer("adam"), "mse")
    with pytest.raises(ValueError, match=r'none for Wavefront "stack".*a layer on a.*grid=grid'):
        model.fit(np.ones((4, 6, 3)), np.ones((4, 6, 2)), verbose=0,
                  callbacks=[ringar.callbacks.Distributed()])  # fmt: skip
