"""The reduction on a grid, for variables that are marked as cut, without layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.sharding.cut import Cut, mark
from tests.parallel.conftest import OpenGrid

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(2, 4)]

SGD = keras.optimizers.SGD


def whole_and_cut(grid: ringar.parallel.Grid, *shape: int) -> list[keras.Variable]:
    """A variable that every rank has whole and one that is cut, of zeros."""
    variables = [keras.Variable(np.zeros(shape, "float32"), name=n) for n in ("whole", "cut")]
    mark(variables[1], Cut(0, grid))
    return variables


def test_a_sum_counts_each_model_group_once(open_grid: OpenGrid) -> None:
    grid = open_grid(2)
    variables = whole_and_cut(grid, 3)
    optimizer = ringar.DistributedOptimizer(SGD(1.0), op=ringar.Sum, grid=grid)
    group, groups = float(grid.group), range(grid.data)
    optimizer.apply([tf.fill([3], group + 1), tf.fill([3], group + 10 * grid.part)], variables)
    np.testing.assert_array_equal(variables[0], [-sum(g + 1.0 for g in groups)] * 3)
    np.testing.assert_array_equal(variables[1], [-sum(g + 10.0 * grid.part for g in groups)] * 3)


def test_a_skipped_step_leaves_the_state_of_powersgd(
    open_grid: OpenGrid, exchange: Callable[[Any], Any]
) -> None:
    """The overflow is in one part, and the state is that of whole variables and of all parts."""
    grid = open_grid(2)
    variables = whole_and_cut(grid, 12, 10)
    inner = ringar.DistributedOptimizer(
        SGD(1.0), compression=ringar.Compression.powersgd(rank=1), grid=grid
    )
    optimizer = keras.optimizers.LossScaleOptimizer(inner)
    optimizer.build(variables)
    reductions = (inner._exchange.reduction._over_all, inner._exchange.reduction._over_data)

    def state() -> list[bytes]:
        states = [s for reduction in reductions for s in reduction.low_rank._states.values()]
        return [array.numpy().tobytes() for s in states for array in (s.q, s.error)]

    gradients = [tf.random.stateless_normal([12, 10], [ringar.rank(), i]) for i in range(2)]
    optimizer.apply(gradients, variables)
    before = state()
    assert before
    last = ringar.rank() == ringar.size() - 1
    optimizer.apply([gradients[0], gradients[1] * (np.inf if last else 1.0)], variables)
    assert state() == before
    assert len(set(exchange(float(optimizer.dynamic_scale.numpy())))) == 1
    optimizer.apply(gradients, variables)
    assert state() != before


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has none")
@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (lambda: keras.optimizers.Lamb(0.1), "must treat each element by itself.*Lamb"),
        (lambda: keras.optimizers.Adafactor(0.1), "must treat each element by itself.*Adafactor"),
        (lambda: SGD(0.1, global_clipnorm=1.0), "`global_clipnorm` must be None.*Use `clipvalue`"),
    ],
    ids=["lamb", "adafactor", "norm"],
)
def test_optimizers_within_another(
    inner: Callable[[], Any], message: str, open_grid: OpenGrid
) -> None:
    grid = open_grid(2)

    def step(for_whole: Any, for_cut: Any) -> list[keras.Variable]:
        variables = whole_and_cut(grid, 3)
        choice = {"whole": for_whole, "cut": for_cut}
        inner_optimizer = keras.optimizers.MultiOptimizer(lambda variable: choice[variable.name])
        optimizer = ringar.DistributedOptimizer(inner_optimizer, grid=grid)
        optimizer.apply([tf.ones([3]), tf.ones([3])], variables)
        return variables

    with pytest.raises(ValueError, match=message):
        step(SGD(0.1), inner())
    for variable in step(inner(), SGD(0.1)):  # of a whole variable, norms are right
        assert np.all(np.asarray(variable) < 0)
