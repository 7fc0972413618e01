"""Collectives run in the order of the program, wherever in it they stand.

Ranks that disagree on the order get an error, so that these tests need only run the calls; a wrong
order that all ranks share shows in a result, since every call is named and sized on its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.collectives import common

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.fixture(params=["graph", "compiled"])
def trace(request: pytest.FixtureRequest) -> Decorator:
    """``tf.function``, plain and compiled."""
    return lambda f: tf.function(f, jit_compile=request.param == "compiled")


def total(value: float) -> float:
    """The sum over all ranks of what each of them has ``value + rank`` of."""
    ranks = ringar.size()
    return ranks * value + ranks * (ranks - 1) / 2


def test_independent_calls(trace: Decorator) -> None:
    """No data between them, many at once, of sizes that take different times."""

    @trace
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        return [
            ringar.allreduce(tf.fill([1 + 7919 * (i % 5)], x + float(i)), ringar.Sum)
            for i in range(30)
        ]

    for _ in range(5):
        results = step(tf.constant(float(ringar.rank())))
        for i, result in enumerate(results):
            expected = np.full(1 + 7919 * (i % 5), total(i), np.float32)
            common.assert_same(result.numpy(), expected)


def test_results_that_nobody_uses(trace: Decorator) -> None:
    """A collective is not dropped from a graph: other ranks may need it."""

    @trace
    def step(x: tf.Tensor) -> tf.Tensor:
        if ringar.rank() == 0:
            ringar.allreduce(x, ringar.Sum, name="used by some")
            return x
        return ringar.allreduce(x, ringar.Sum, name="used by some")

    step(tf.ones([3]))
    step(tf.ones([3]))


def test_branches(trace: Decorator) -> None:
    @trace
    def step(x: tf.Tensor, left: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        before = ringar.allreduce(x, ringar.Sum, name="before")
        if left:
            chosen = ringar.allreduce(x + 1.0, ringar.Sum, name="left")
            chosen += ringar.allreduce(x + 2.0, ringar.Sum, name="left again")
        else:
            chosen = ringar.allreduce(x + 5.0, ringar.Sum, name="right")
        return before, chosen, ringar.allreduce(x + 9.0, ringar.Sum, name="after")

    x = tf.constant(float(ringar.rank()))
    for left in (True, False, True):
        before, chosen, after = step(x, tf.constant(left))
        assert before.numpy() == total(0)
        assert chosen.numpy() == (total(1) + total(2) if left else total(5))
        assert after.numpy() == total(9)


def test_branches_whose_results_are_dropped(trace: Decorator) -> None:
    """No data connect the branch's call to the one after it: their order must be kept anyway."""

    @trace
    def step(x: tf.Tensor, go: tf.Tensor) -> tf.Tensor:
        def branch() -> tf.Tensor:
            ringar.allreduce(tf.fill([60_000], x), ringar.Sum, name="in the branch")
            return tf.constant(0)

        tf.cond(go, branch, lambda: tf.constant(1))
        return ringar.allreduce(x, ringar.Sum, name="after")

    for turn in range(10):
        x = tf.constant(float(ringar.rank()))
        assert step(x, tf.constant(turn % 2 == 0)).numpy() == total(0)


def test_loops(trace: Decorator) -> None:
    @trace
    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        sums = tf.zeros([])
        for i in tf.range(10):
            ringar.allreduce(x, ringar.Max, name="dropped")
            sums += ringar.allreduce(x + tf.cast(i, tf.float32), ringar.Sum, name="kept")
        return sums, ringar.allreduce(x, ringar.Sum, name="after")

    for _ in range(5):
        sums, after = step(tf.constant(float(ringar.rank())))
        assert sums.numpy() == sum(total(i) for i in range(10))
        assert after.numpy() == total(0)


def test_functions_within_functions(trace: Decorator) -> None:
    """Calls of the inner function share no data with those around it."""

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        ringar.allreduce(tf.fill([30_000], x), ringar.Sum, name="inner, dropped")
        return ringar.allreduce(x + 3.0, ringar.Sum, name="inner")

    @trace
    def outer(x: tf.Tensor) -> list[tf.Tensor]:
        results = []
        for i in range(5):
            results.append(ringar.allreduce(x + float(i), ringar.Sum, name=f"outer {i}"))
            results.append(inner(x + 10.0 * i))
        return results

    for _ in range(5):
        results = [r.numpy() for r in outer(tf.constant(float(ringar.rank())))]
        assert results[0::2] == [total(i) for i in range(5)]
        assert results[1::2] == [total(10 * i + 3) for i in range(5)]


def test_forward_and_backward(trace: Decorator) -> None:
    """The gradient's calls come after the forward ones, in an order that all ranks share."""

    @trace
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for i in range(6):
                y = ringar.allreduce(y * float(i + 1), ringar.Average, name=f"layer {i}")
        slope = tape.gradient(y, x)
        return y, slope, ringar.allreduce(x, ringar.Sum, name="after")

    for _ in range(3):
        y, slope, after = step(tf.constant(1.0))
        assert y.numpy() == pytest.approx(720.0)
        assert slope.numpy() == pytest.approx(720.0)
        assert after.numpy() == ringar.size()


def test_eager_calls_between_functions(trace: Decorator) -> None:
    reduce = trace(lambda t: ringar.allreduce(t, ringar.Sum, name="traced"))
    for i in range(20):
        x = tf.constant(float(ringar.rank() + i))
        traced = reduce(x)
        eager = ringar.allreduce(x, ringar.Sum, name="eager")
        array = ringar.allreduce(x.numpy(), ringar.Sum, name="array")
        assert traced.numpy() == eager.numpy() == array == total(i)


def test_a_dataset_map(exchange: Callable[[Any], list[Any]]) -> None:
    """Sequential maps run in order, on threads of their own."""
    data = tf.data.Dataset.range(20).map(
        lambda i: ringar.allreduce(tf.cast(i, tf.float32), ringar.Sum, name="map")
    )
    results = [float(x) for x in data]
    assert results == [ringar.size() * i for i in range(20)]
    exchange("done")


@pytest.mark.ranks(2, 3, 4)
def test_retracing_on_one_rank_alone() -> None:
    """Names are numbered within a graph, so that an additional trace does not shift them."""

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return ringar.allreduce(ringar.allreduce(x, ringar.Sum), ringar.Max)

    if ringar.rank() == 0:
        step.get_concrete_function(tf.TensorSpec([7], tf.float32))
    assert step(tf.ones([3])).numpy().tolist() == [ringar.size()] * 3


def test_long_collectives_of_a_graph_come_when_they_can() -> None:
    """Each rank's inputs are ready in another order; the program's order holds on all."""
    size, rank = ringar.size(), ringar.rank()

    @tf.function
    def step(first: tf.Tensor, second: tf.Tensor) -> list[tf.Tensor]:
        # What takes long to compute is the first on some ranks and the second on others.
        slow = tf.linalg.matmul(first, first, name="slow")
        first_input, second_input = (slow, second) if rank % 2 else (second, slow)
        results = [
            ringar.allreduce(
                tf.ones([700_000]) * (first_input[0, 0] + 1), op=ringar.Sum, name="early"
            ),
            ringar.allreduce(
                tf.ones([700_000]) * (second_input[0, 0] + 2), op=ringar.Sum, name="late"
            ),
            ringar.allreduce(tf.ones([3]), op=ringar.Sum, name="short"),
        ]
        ringar.allreduce(tf.ones([700_000]), name="without use")
        return results

    for _ in range(3):
        zeros = tf.zeros([300, 300])
        firsts, seconds, thirds = step(zeros, zeros)
        np.testing.assert_array_equal(firsts, np.full(700_000, size, np.float32))
        np.testing.assert_array_equal(seconds, np.full(700_000, 2 * size, np.float32))
        np.testing.assert_array_equal(thirds, np.full(3, size, np.float32))


@pytest.mark.skipif("ringar.size() < 2")
def test_a_step_that_fails_in_the_middle_leaves_nothing_behind() -> None:
    @tf.function
    def step(spoiled: bool) -> list[tf.Tensor]:
        odd = ringar.rank() if spoiled else 0
        return [
            ringar.allreduce(tf.ones([700_000]), op=ringar.Sum, name=f"{i}-{odd if i == 1 else 0}")
            for i in range(4)
        ]

    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected the same collective"):
            step(True)
        for result in step(False):
            np.testing.assert_array_equal(result, np.full(700_000, ringar.size(), np.float32))


def test_a_call_that_waits_in_the_middle_of_a_step() -> None:
    """It waits for a collective before it whose inputs are still computed, and does not drop it."""

    def reduce(x: tf.Tensor) -> tf.Tensor:
        return ringar.allreduce(x, ringar.Sum, name="inner")

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        for _ in range(4):
            x = tf.linalg.matmul(x, x) / 500
        long = ringar.allreduce(tf.fill([700_000], x[0, 0]), ringar.Sum, name="long")
        return long, tf.numpy_function(reduce, [y], tf.float32)

    for _ in range(3):
        long, short = step(tf.ones([500, 500]), tf.ones([5]))
        np.testing.assert_allclose(long, np.full(700_000, ringar.size()))
        np.testing.assert_array_equal(short, np.full(5, ringar.size(), np.float32))


def test_a_step_that_fails_before_its_collectives_holds_up_nothing() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        no_such_row = tf.gather(x, 7)
        return ringar.allreduce(tf.fill([700_000], no_such_row), ringar.Sum, name="never")

    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError):
            step(tf.ones([3]))
        result = ringar.allreduce(np.ones(5, np.float32), ringar.Sum, name="next")
        np.testing.assert_array_equal(result, np.full(5, ringar.size(), np.float32))


@pytest.mark.ranks(1, 2)
def test_calls_and_conditionals_with_collectives_keep_the_order_of_the_program() -> None:
    """Each of them uses a variable of its own, and TensorFlow orders those that share one."""

    def reduced(name: str) -> Callable[[tf.Tensor], tf.Tensor]:
        variable = tf.Variable(2.0)
        return lambda x: ringar.allreduce(variable * x, name=name)

    call, conditional, gradient = reduced("in a call"), reduced("in a branch"), reduced("of a tape")
    called, differentiated = tf.function(call), tf.function(gradient)

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        results = [called(x), ringar.allreduce(x, name="beside"), called(x)]
        results.append(tf.cond(x[0] > 0, lambda: conditional(x), lambda: x))
        with tf.GradientTape() as tape:
            tape.watch(x)
            results += [called(x), differentiated(x)]
        return [*results, tape.gradient(results[-1], x), ringar.allreduce(x, name="last")]

    operations = step.get_concrete_function(tf.ones([3])).graph.get_operations()
    kinds = ("StatefulPartitionedCall", "RingarTicket", "RingarAllreduce", "If")
    in_order = [op for op in operations if op.type in kinds]
    assert [op.type for op in in_order].count("StatefulPartitionedCall") == 5
    assert len(in_order) == 8
    for before, op in itertools.pairwise(in_order):
        assert before in before_in_graph(op), (before.name, op.name)
    for value in step(tf.ones([3])):
        np.testing.assert_array_equal(value, value[0])


def before_in_graph(op: tf.Operation) -> set[tf.Operation]:
    """All ops for which an op waits."""
    ancestors: set[tf.Operation] = set()
    left = [op]
    while left:
        descendant = left.pop()
        new = {*descendant.control_inputs, *(tensor.op for tensor in descendant.inputs)} - ancestors
        ancestors |= new
        left += new
    return ancestors
