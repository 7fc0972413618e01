"""Collectives in graphs of TensorFlow 1: a session runs them in the order of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
import ringar.horovod.tensorflow as hvd

pytestmark = pytest.mark.usefixtures("initialized")

v1 = tf.compat.v1


@pytest.fixture
def session() -> Iterator[Any]:
    """A session of a new graph, which is the default graph."""
    with tf.Graph().as_default(), v1.Session() as session:
        yield session


def in_turn(tensors: list[Any]) -> list[Any]:
    """Tensors in an order that differs between ranks: a session may fetch them in any."""
    return tensors[::-1] if hvd.rank() % 2 else tensors


def total(value: float) -> float:
    """The sum over all ranks of what each of them has `value + rank` of."""
    return hvd.size() * value + sum(range(hvd.size()))


def test_several_collectives_of_one_run(session: Any) -> None:
    """Of equal shapes, and of sizes that take different times; then some of them alone."""
    x = v1.placeholder(tf.float32, [])
    sums = [
        hvd.allreduce(tf.fill([(1 + i) if i % 5 else 300_000], x + i), op=hvd.Sum, name="same")
        for i in range(15)
    ]
    moved = [hvd.allgather(tf.fill([hvd.rank() + 1], x)), hvd.broadcast(x, hvd.size() - 1)]
    feed = {x: float(hvd.rank())}
    for _ in range(5):
        values = in_turn(session.run(in_turn(sums), feed))
        for i, value in enumerate(values):
            np.testing.assert_array_equal(value, np.full_like(value, total(i)))
    for i in (7, 3):
        np.testing.assert_array_equal(session.run(sums[i], feed), [total(i)] * (1 + i))
    gathered, last = session.run(moved, feed)
    np.testing.assert_array_equal(gathered, np.repeat(range(hvd.size()), range(1, hvd.size() + 1)))
    assert last == hvd.size() - 1


def test_gradients_of_the_parts_of_a_group(session: Any) -> None:
    """They are collectives of equal shapes, which a session would run in any order."""
    parts = [v1.placeholder(tf.float32, [4]) for _ in range(4)]
    reduced = hvd.grouped_allreduce(parts, op=hvd.Sum)
    slopes = [
        v1.gradients(result, part, tf.fill([4], float(i)))[0]
        for i, (result, part) in enumerate(zip(reduced, parts, strict=True))
    ]
    feed = {part: np.zeros(4) for part in parts}
    for _ in range(20):
        values = in_turn(session.run(in_turn(slopes), feed))
        np.testing.assert_array_equal(values, np.outer(range(4), np.full(4, hvd.size())))
    if hvd.size() > 1:
        with pytest.raises(tf.errors.InvalidArgumentError, match="the same collective"):
            session.run(slopes[min(hvd.rank(), 1)], feed)


def test_other_operations_are_not_run(session: Any) -> None:
    """A collective depends on nothing that was made before another one."""
    failing = tf.debugging.Assert(False, ["was run"])
    with tf.control_dependencies([failing]):
        first = hvd.allreduce(tf.ones(3))
    np.testing.assert_array_equal(session.run(hvd.allreduce(tf.ones(2))), [1, 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="was run"):
        session.run(first)
    np.testing.assert_array_equal(session.run(hvd.allreduce(tf.ones(4), op=hvd.Max)), np.ones(4))


def test_variables(session: Any) -> None:
    """Broadcasts assign when a session runs them, and not before."""
    last = hvd.size() - 1
    variables = [
        v1.Variable(np.full(3, 10.0 * i + hvd.rank()), use_resource=i != 2) for i in range(4)
    ]
    start = v1.global_variables_initializer()
    of_all = hvd.broadcast_global_variables(last)
    of_some = hvd.broadcast_variables(variables[:2], root_rank=0)
    in_place = hvd.broadcast_(variables[2:], last)

    def after(*fetched: Any) -> list[float]:
        session.run(start)
        session.run(fetched)
        return [float(value[0]) for value in session.run(variables)]

    values = [10.0 * i + hvd.rank() for i in range(4)]
    assert after() == values
    assert after(of_all) == [10.0 * i + last for i in range(4)]
    assert after(of_some) == [0.0, 10.0, *values[2:]]
    assert after(in_place) == [*values[:2], 20.0 + last, 30.0 + last]
    session.run(start)
    np.testing.assert_array_equal(session.run(in_place[0]), np.full(3, 20.0 + last))


def test_a_loop_of_training(session: Any) -> None:
    """A tape, an Adasum and objects, as scripts of TensorFlow 1 have them."""
    weight = v1.Variable([1.0, 2.0], use_resource=True)
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        tape.watch(weight)
        loss = tf.reduce_sum(weight * (hvd.rank() + 1.0))
    (slope,) = tape.gradient(loss, [weight])
    step = weight.assign_sub(0.5 * slope)
    combined = hvd.allreduce(weight + 0.0, op=hvd.Adasum)
    session.run(v1.global_variables_initializer())
    session.run(step)
    expected = np.array([1.0, 2.0]) - 0.5 * (hvd.size() + 1) / 2
    np.testing.assert_allclose(session.run(weight), expected, rtol=1e-6)
    np.testing.assert_allclose(session.run(combined), expected, rtol=1e-6)
    assert hvd.broadcast_object({"rank": hvd.rank()}, 0, session=session) == {"rank": 0}


def _reduced(x: Any) -> Any:
    return hvd.allreduce(x, op=hvd.Sum)


#: What a session could not keep in order, and what it would never run.
REFUSED: dict[str, Callable[[], Any]] = {
    "function": lambda: tf.function(_reduced)(tf.ones(3)),
    "compiled function": lambda: tf.function(_reduced, jit_compile=True)(tf.ones(3)),
    "branch": lambda: tf.cond(tf.constant(True), lambda: _reduced(tf.ones(3)), lambda: tf.ones(3)),
    "loop": lambda: tf.while_loop(lambda x: x[0] < 9, _reduced, [tf.ones(3)]),
    "data": lambda: tf.data.Dataset.range(3).map(_reduced),
    "barrier": hvd.barrier,
    "broadcast_variables": lambda: ringar.broadcast_variables([v1.Variable(1.0)]),
    "send": lambda: ringar.send(tf.ones(3), to=(hvd.rank() + 1) % hvd.size()),
    "optimizer": lambda: hvd.DistributedOptimizer(keras.optimizers.SGD()).apply(
        [tf.ones(2)], [tf.Variable([1.0, 2.0])]
    ),
}


@pytest.mark.ranks(2, 3, 4)
def test_what_cannot_be_ordered_is_refused(session: Any) -> None:
    for name, make in REFUSED.items():
        with pytest.raises(ringar.errors.UnsupportedError, match="TensorFlow 1"):
            pytest.fail(f"{name}: {make()}")
    np.testing.assert_array_equal(session.run(hvd.allreduce(tf.ones(2))), [1, 1])


def test_graphs_that_are_imported_go_on_in_order(session: Any) -> None:
    """With collectives of the importing program, whose names and tickets come behind theirs."""
    with tf.Graph().as_default() as before:
        x = v1.placeholder(tf.float32, [2], name="x")
        for i in range(4):
            tf.identity(hvd.allreduce(x * float(i), op=hvd.Sum), name=f"old_{i}")
    tf.import_graph_def(before.as_graph_def(), name="")
    (x,) = [op.outputs[0] for op in session.graph.get_operations() if op.name == "x"]
    fetched = [f"old_{i}:0" for i in range(4)]
    fetched += [hvd.allreduce(x * (4.0 + i), op=hvd.Sum) for i in range(4)]
    for _ in range(10):
        values = in_turn(session.run(in_turn(fetched), {x: np.ones(2)}))
        np.testing.assert_array_equal(values, hvd.size() * np.repeat(np.arange(8), 2).reshape(8, 2))


@pytest.mark.ranks(2)
def test_ranks_that_run_different_graphs_get_an_error() -> None:
    """Their collectives have names and shapes like those of the other graph."""
    pairs = []
    for i in range(2):
        with tf.Graph().as_default() as graph:
            pairs.append((graph, hvd.allreduce(tf.fill([2], float(i)))))
    graph, mean = pairs[hvd.rank()]
    with pytest.raises(tf.errors.InvalidArgumentError, match="the same collective"):
        v1.Session(graph=graph).run(mean)


def test_conditionals_of_tensorflow_1_are_refused(session: Any) -> None:
    v1.disable_control_flow_v2()
    try:
        with pytest.raises(ringar.errors.UnsupportedError, match="a conditional or a loop"):
            tf.cond(tf.constant(True), lambda: _reduced(tf.ones(3)), lambda: tf.ones(3))
    finally:
        v1.enable_control_flow_v2()
