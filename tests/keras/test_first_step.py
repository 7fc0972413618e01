"""Loops without callbacks: ranks that begin with other weights take rank 0's in the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.elastic.comparison import Compared, require_same
from ringar.errors import MismatchError
from tests.keras import common
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

Exchange = Callable[[Any], list[Any]]
mean_squared = keras.losses.MeanSquaredError()


def train(model: keras.Model, batches: list[Any], jit: bool | None, distributed: bool) -> None:
    """Train by a tape; `jit` is None: eagerly."""
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    def step(x: Any, y: Any) -> None:
        tape: Any = tf.GradientTape()
        with ringar.DistributedGradientTape(tape) if distributed else tape as tape:
            loss = mean_squared(y, model(x))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    traced = step if jit is None else tf.function(step, jit_compile=jit)
    for x, y in batches:
        traced(tf.constant(x), tf.constant(y))


@pytest.mark.parametrize("jit", [False, fast_if(False, True)], ids=["graph", "jit"])
def test_a_traced_loop_equals_one_process(jit: bool, rank: int, size: int) -> None:
    model, single = common.dense_model(seed=rank), common.dense_model()
    steps = [[common.regression(4, seed=10 * n + r) for r in range(size)] for n in range(3)]
    train(model, [parts[rank] for parts in steps], jit, distributed=True)
    batches = [[np.concatenate(part) for part in zip(*parts, strict=True)] for parts in steps]
    train(single, batches, jit, distributed=False)
    assert common.largest_difference(common.values(model), common.values(single)) < 1e-5


def test_ranks_that_trained_in_a_set_begin_with_all_alike(rank: int, size: int) -> None:
    """Rank 0 trains alone, the last two ranks together, and then all; a second set is none anew."""
    sets = [ringar.add_process_set([0]), ringar.add_process_set(range(max(size - 2, 0), size))]
    model = common.dense_model(seed=rank)
    for ranks in [*sets, None, None, *sets]:
        if ranks is None or ranks.included():
            optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=ranks)
            model.compile(optimizer=optimizer, loss="mse")
            model.train_on_batch(*common.regression(4, seed=rank))
        if ranks is None:
            states = ringar.allgather_object([v.tobytes() for v in common.values(model)])
            assert states.count(states[0]) == size
    for ranks in sets:
        ringar.remove_process_set(ranks)


def test_an_eager_loop_is_warned(
    rank: int, size: int, exchange: Exchange, caplog: pytest.LogCaptureFixture
) -> None:
    model = common.dense_model(seed=rank)
    train(model, [common.regression(4, seed=n) for n in range(2)], None, distributed=True)
    assert len(set(exchange(str([v.tobytes() for v in common.values(model)])))) == 1
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == (size > 1 and rank == 0)
    if warnings:
        kernels = [layer.kernel.path for layer in model.layers]  # biases begin with zeros
        assert f"different values of {', '.join(kernels)}. All took those of rank 0" in warnings[0]
        assert "the gradients of the first step are those of the values before" in warnings[0]


def test_later_differences_are_left(rank: int, size: int) -> None:
    variable = keras.Variable([1.0, 2.0])
    for step in range(3):
        with ringar.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(variable.value)
        tape.gradient(loss, [variable])
        np.testing.assert_array_equal(variable, [1 + step * rank, 2 + step * rank])
        variable.assign_add([rank, rank])


@pytest.mark.parametrize("loaded", ["on all", "on one"])
def test_state_of_the_optimizer(loaded: str, rank: int, size: int, exchange: Exchange) -> None:
    model = common.dense_model()
    optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(0.1))
    model.compile(optimizer, "mse")
    if loaded == "on all" or rank == 0:
        optimizer.build(model.trainable_variables)
        for slot in optimizer.variables[2:]:
            slot.assign(np.full(slot.shape, rank + 1.0, slot.dtype))
    if loaded == "on all" or size == 1:
        model.train_on_batch(*common.regression(4))
        values = [np.array(v).tobytes() for v in optimizer.variables]
        assert len(set(exchange(str(values)))) == 1
        return
    majority = {2: "rank 1", 3: "ranks 1, 2"}.get(size, f"ranks 1-{size - 1}")
    with pytest.raises(MismatchError, match=rf"6 \({majority}\).*build"):
        model.train_on_batch(*common.regression(4))


def test_state_that_cannot_be_read_is_left() -> None:
    """A variable that the traced step makes has no value yet."""
    variables: list[tf.Variable] = []

    @tf.function
    def step() -> Any:
        if not variables:
            variables.append(tf.Variable([1.0, 2.0]))
        with ringar.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(variables[0])
        return tape.gradient(loss, variables)

    np.testing.assert_array_equal(step()[0], [1.0, 1.0])


@pytest.mark.ranks(2, 3)
def test_ranks_of_an_elastic_job_compare_rates_and_weights(rank: int) -> None:
    """Of optimizers and weights whose gradients a rank has reduced; others may differ."""

    def compare(rate: float, digest: int, is_reduced: bool) -> None:
        optimizer = keras.optimizers.SGD(rate)
        settings = Compared.of([], [optimizer]).settings
        require_same(Compared(settings, ["kernel", "bias"], [7, digest], [False, is_reduced]))

    compare(0.1, 1, is_reduced=rank == 0)
    compare(0.1 + rank, rank, is_reduced=False)
    with pytest.raises(MismatchError, match=rf"rank {rank} .* same optimizer 0.learning_rate"):
        compare(0.1 if rank else 0.2, 1, is_reduced=rank == 1)
    with pytest.raises(MismatchError, match=r"same bias \(digest of weight 1\) on every rank"):
        compare(0.1, rank, is_reduced=rank == 1)
