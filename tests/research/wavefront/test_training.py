"""`fit` with a stack over ranks gives the weights that Keras' layers get in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import ringar
from tests import one_process
from tests.comparison import assert_all_close
from tests.parallel.conftest import OpenGrid
from tests.research.wavefront import stacks

pytestmark = pytest.mark.usefixtures("initialized")
layers = keras.layers
WORDS, STEPS, CLASSES = 7, 9, 3


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    lengths = rng.integers(2, STEPS + 1, 24)
    words = rng.integers(1, WORDS, (24, STEPS)) * (np.arange(STEPS) < lengths[:, None])
    return words, rng.integers(0, CLASSES, 24)


def model(stack: list[Any], *, embed: bool = True, nested: bool = False) -> keras.Model:
    """A classifier of masked sequences; `embed`: weights and a mask come before the stack.

    `nested`: the stack is a model of its own, whose input is none of the whole model's.
    """
    if nested:
        stack = [keras.Sequential([keras.Input((STEPS, 2)), *stack])]
    before = [keras.Input((STEPS,)), layers.Embedding(WORDS, 2, mask_zero=True)]
    if not embed:
        before = [keras.Input((STEPS, 2))]
    classifier = keras.Sequential([*before, *stack, layers.Dense(CLASSES)])
    rng = np.random.default_rng(6)
    classifier.set_weights([0.4 * rng.normal(size=w.shape) for w in classifier.get_weights()])
    return classifier


def compiled(model: keras.Model, optimizer: Any, *, eager: bool = False) -> keras.Model:
    """`eager`: takes less time than to trace Keras' loops."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], run_eagerly=eager, jit_compile=False)
    return model


@pytest.mark.ranks(1, 2, 3, 4)
def test_fit(open_grid: OpenGrid, size: int) -> None:
    fit(open_grid(size), embed=size != 2, nested=size == 3)


@pytest.mark.ranks(4)
def test_fit_with_two_model_groups(open_grid: OpenGrid) -> None:
    fit(open_grid(2), embed=True)


def fit(grid: ringar.parallel.Grid, *, embed: bool, nested: bool = False) -> None:
    x, y = data()
    if not embed:
        x = np.random.default_rng(8).normal(size=(24, STEPS, 2)).astype("float32")
    kinds = "LG"
    plain = compiled(
        model(stacks.layers(kinds, 0, sequences=False), embed=embed, nested=nested),
        "sgd",
        eager=True,
    )
    history = one_process.fit(plain, x, y, batch_size=12, epochs=2, shuffle=False)
    stack = ringar.parallel.Wavefront(stacks.layers(kinds, 1, sequences=False), 4)
    model_on_ranks = compiled(
        model([stack], embed=embed, nested=nested), ringar.DistributedOptimizer("sgd", grid=grid)
    )
    # Each model group has a part of each batch, in the order that makes up the whole ones.
    rows = np.arange(24).reshape(2, grid.data, -1)[:, grid.group].ravel()
    result = model_on_ranks.fit(
        x[rows], y[rows], batch_size=12 // grid.data, epochs=2, shuffle=False, verbose=0,
        callbacks=[ringar.callbacks.Distributed()],
    )  # fmt: skip
    np.testing.assert_allclose(result.history["loss"], history["loss"], rtol=1e-5)
    assert_all_close(model_on_ranks.get_weights(), plain.get_weights(), rtol=1e-4, atol=1e-6)
    assert model_on_ranks.predict(x, verbose=0).shape == (24, CLASSES)


def test_the_choice_of_layer_by_layer_trains_alike(open_grid: OpenGrid, size: int) -> None:
    grid = open_grid(size)
    x, y = data()
    weights = []
    for chunk in (None, 2):
        stack = ringar.parallel.Wavefront(stacks.layers("GR", 1, sequences=False), chunk)
        model_on_ranks = compiled(model([stack]), ringar.DistributedOptimizer("sgd", grid=grid))
        model_on_ranks.fit(x, y, batch_size=8, shuffle=False, verbose=0,
                 callbacks=[ringar.callbacks.Distributed()])  # fmt: skip
        assert stack.plan(STEPS).is_wavefront is (chunk is not None)
        weights.append(model_on_ranks.get_weights())
    assert_all_close(*weights, rtol=1e-5, atol=1e-7)


def test_saved_and_loaded(open_grid: OpenGrid, size: int, shared_tmp_path: Path) -> None:
    open_grid(size)
    stack = ringar.parallel.Wavefront(stacks.layers("LG", 1), 3, name="stack")
    model_on_ranks = model([stack, layers.GlobalAveragePooling1D()])
    x, _ = data()
    expected = model_on_ranks.predict(x, verbose=0)
    if ringar.rank() == 0:
        model_on_ranks.save(shared_tmp_path / "model.keras")
    ringar.barrier()
    again = keras.models.load_model(shared_tmp_path / "model.keras")
    assert again.get_layer("stack").chunk == 3
    np.testing.assert_allclose(again.predict(x, verbose=0), expected, rtol=1e-6)


@pytest.mark.ranks(2, 4)
def test_a_rank_sends_its_chunks_and_nothing_else(open_grid: OpenGrid, size: int) -> None:
    open_grid(size)
    stack = stacks.wavefront("R" * size, 2)
    x, _ = stacks.inputs(7)
    ringar.reset_stats()
    stacks.gradients(lambda x, states: stack(x)[:1], stack.trainable_variables, x, [])
    traffic = {
        name: statistics
        for name, statistics in ringar.stats("name").items()
        if "/states" in name or "/gradients" in name
    }
    ups, downs = ringar.rank() < size - 1, ringar.rank() > 0
    units = [4 + i % 3 for i in range(size)]
    words = ups * units[ringar.rank()] + downs * units[ringar.rank() - 1]
    expected = 8 * stacks.BATCH * 7 * words
    assert sum(statistics.bytes for statistics in traffic.values()) == expected
