"""Outputs may take an input's memory only where nobody else looks at it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.collectives import common

COUNT = 20_000  # more than one exchange
COLLECTIVES = {
    "allreduce": lambda t: ringar.allreduce(t, ringar.Sum),
    "grouped": lambda t: ringar.grouped_allreduce([t, t + 1.0], ringar.Sum)[0],
    "broadcast": lambda t: ringar.broadcast(t, ringar.size() - 1),
    "reducescatter": lambda t: ringar.reducescatter(t, ringar.Sum),
    "allgather": ringar.allgather,
    "alltoall": ringar.alltoall,
}


@pytest.fixture(params=sorted(COLLECTIVES))
def collective(request: pytest.FixtureRequest) -> Any:
    return COLLECTIVES[request.param]


@pytest.fixture(params=[False, True], ids=["graph", "compiled"])
def compiled(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def array_of_rank() -> np.ndarray:
    return common.values("float32", (12 * COUNT,), ringar.rank())


def test_arguments_are_kept(collective: Any, compiled: bool) -> None:
    function = tf.function(lambda t: collective(t), jit_compile=compiled)
    tensor = tf.constant(array_of_rank())
    for _ in range(3):
        function(tensor)
    common.assert_same(tensor.numpy(), array_of_rank())


def test_eager_inputs_are_kept(collective: Any) -> None:
    tensor, array = tf.constant(array_of_rank()), array_of_rank()
    collective(tensor)
    common.assert_same(tensor.numpy(), array_of_rank())
    if collective is not COLLECTIVES["grouped"]:
        collective(array)
        common.assert_same(array, array_of_rank())


def test_intermediates_are_kept(collective: Any, compiled: bool) -> None:
    """Used before, after and beside the collective, through other names of the same memory."""

    @tf.function(jit_compile=compiled)
    def step(t: tf.Tensor) -> tuple[tf.Tensor, ...]:
        value = t * 2.0
        alias = tf.reshape(value, [12, -1])
        first = collective(value)
        second = collective(value)
        with tf.control_dependencies([first, second]):
            return first, second, tf.identity(value), alias + 0.0

    first, second, value, alias = step(tf.constant(array_of_rank()))
    common.assert_same(value.numpy(), array_of_rank() * 2)
    common.assert_same(alias.numpy(), (array_of_rank() * 2).reshape(12, -1))
    common.assert_same(first.numpy(), second.numpy())


def test_an_intermediate_that_nobody_else_uses(collective: Any, compiled: bool) -> None:
    """Here memory may be passed on: the result must be right anyway, also through a chain."""

    @tf.function(jit_compile=compiled)
    def fresh(t: tf.Tensor) -> tf.Tensor:
        return collective(t * 2.0) * 1.0

    result = fresh(tf.constant(array_of_rank())).numpy()
    common.assert_same(result, collective(tf.constant(array_of_rank() * 2)).numpy())


def test_constants_are_kept(collective: Any, compiled: bool) -> None:
    @tf.function(jit_compile=compiled)
    def step() -> tf.Tensor:
        return collective(tf.fill([12 * COUNT], 2.0)), collective(tf.constant(array_of_rank()))

    first, again = step(), step()
    for before, after in zip(first, again, strict=True):
        common.assert_same(before.numpy(), after.numpy())


def test_variables_are_kept(collective: Any, compiled: bool) -> None:
    variable = tf.Variable(array_of_rank())

    @tf.function(jit_compile=compiled)
    def step() -> tf.Tensor:
        return collective(variable.read_value()), collective(variable)

    for _ in range(2):
        step()
    common.assert_same(variable.numpy(), array_of_rank())


def test_a_variable_assigned_from_its_own_reduction(compiled: bool) -> None:
    variable = tf.Variable(tf.fill([COUNT], float(ringar.rank())))

    @tf.function(jit_compile=compiled)
    def step() -> None:
        variable.assign(ringar.allreduce(variable))

    step()
    step()
    mean = (ringar.size() - 1) / 2
    common.assert_same(variable.numpy(), np.full(COUNT, mean, np.float32))


def test_what_a_loop_carries_is_kept(compiled: bool) -> None:
    @tf.function(jit_compile=compiled)
    def step(t: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        carried, invariant = t * 1.0, t * 3.0
        for _ in tf.range(4):
            carried = ringar.allreduce(carried, ringar.Average) + 0.0 * invariant
            ringar.allreduce(invariant, ringar.Sum)
        return carried, invariant

    carried, invariant = step(tf.fill([COUNT], float(ringar.rank())))
    common.assert_same(invariant.numpy(), np.full(COUNT, 3 * ringar.rank(), np.float32))
    np.testing.assert_allclose(carried.numpy(), (ringar.size() - 1) / 2, rtol=1e-6)
