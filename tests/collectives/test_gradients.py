"""Gradients of every collective against finite differences.

The loss is the sum of the ranks' losses, each a weighted sum of what that rank's collective gave.
The gradient of a rank's input is then how the whole sum changes with it, so for the differences one
rank's input is moved at a time while all ranks compute their losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.collectives.call import Call
from tests.collectives import common

Collective = Callable[[Any], Sequence[Any]]
STEP = 1e-6


def weights(count: int, output: int, rank: int | None = None) -> np.ndarray:
    """What a rank's loss (default: this one's) makes of the elements of its output."""
    place = ringar.rank() if rank is None else rank
    return np.random.default_rng([output, place]).uniform(-1, 1, 1000)[:count]


def loss_of(outputs: Sequence[Any]) -> Any:
    """This rank's loss, which bends: a gradient that is constant would prove little."""
    loss = tf.zeros([], tf.float64)
    for i, y in enumerate(outputs):
        flat = tf.reshape(y, [-1])
        loss += tf.reduce_sum(
            (flat + flat * flat / 2) * tf.constant(weights(1000, i))[: tf.size(flat)]
        )
    return loss


def analytic(way: str, collective: Collective, array: np.ndarray) -> np.ndarray:
    def slope(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = loss_of(collective(x))
        return tape.gradient(loss, x)

    if way == "graph":
        slope = tf.function(slope)
    elif way == "compiled":
        slope = tf.function(slope, jit_compile=True)
    result: np.ndarray = slope(tf.constant(array)).numpy()
    return result


def numeric(
    collective: Collective, array: np.ndarray, exchange: Callable[[Any], list[Any]]
) -> np.ndarray:
    """Central differences; every rank computes every other rank's moves, too."""
    slope = np.zeros_like(array)
    for rank, shape in enumerate(exchange(array.shape)):
        for place in np.ndindex(shape):
            losses = []
            for move in (STEP, -STEP):
                moved = array.copy()
                if rank == ringar.rank():
                    moved[place] += move
                losses.append(float(loss_of([np.asarray(y) for y in collective(moved)])))
            change = ringar.allreduce(np.array(losses[0] - losses[1]), ringar.Sum)
            if rank == ringar.rank():
                slope[place] = change / (2 * STEP)
    return slope


def scaled(op: ringar.ReduceOp) -> Collective:
    def collective(x: Any) -> list[Any]:
        return [
            ringar.allreduce(x, op),
            ringar.allreduce(x, op, prescale_factor=0.7, postscale_factor=-1.3),
        ]

    return collective


def scattered(op: ringar.ReduceOp) -> Collective:
    factors: Any = {"prescale_factor": 0.7, "postscale_factor": -1.3}
    return lambda x: [ringar.reducescatter(x, op), ringar.reducescatter(x, op, **factors)]


def grouped(x: Any) -> list[Any]:
    reduced = ringar.grouped_allreduce([x, x * x, x[:1]], ringar.Average)
    gathered = ringar.grouped_allgather([x * 2.0, x * x])
    parts = ringar.grouped_reducescatter([x * 3.0, x], ringar.Sum)
    return [*reduced, *gathered, *parts, *ringar.grouped_broadcast([x, x * x], 0)]


def chained(x: Any) -> list[Any]:
    """What a model does: one collective's result goes into the next."""
    once = ringar.allreduce(x * x, ringar.Average)
    return [ringar.allgather(ringar.allreduce(once * x, ringar.Sum))]


def extremes(reduction: Callable[..., Any]) -> Collective:
    scale = {"prescale_factor": -0.7, "postscale_factor": 1.3}
    return lambda x: [
        reduction(x, ringar.Min),
        reduction(x, ringar.Max),
        reduction(x, ringar.Max, **scale),
    ]


def product(reduction: Callable[..., Any]) -> Collective:
    scale = {"prescale_factor": 1.5, "postscale_factor": -0.5}
    return lambda x: [reduction(x, ringar.Product), reduction(x, ringar.Product, **scale)]


COLLECTIVES: dict[str, Collective] = {
    "sum": scaled(ringar.Sum),
    "average": scaled(ringar.Average),
    "extremes": extremes(ringar.allreduce),
    "product": product(ringar.allreduce),
    "allgather": lambda x: [ringar.allgather(x)],
    "broadcast": lambda x: [ringar.broadcast(x, 0), ringar.broadcast(x, ringar.size() - 1)],
    "reducescatter": scattered(ringar.Sum),
    "reducescatter average": scattered(ringar.Average),
    "reducescatter extremes": extremes(ringar.reducescatter),
    "reducescatter product": product(ringar.reducescatter),
    "alltoall": lambda x: [ringar.alltoall(x)],
    "grouped": grouped,
    "chained": chained,
}


@pytest.fixture(params=["eager", "graph", "compiled"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_equals_finite_differences(name: str, exchange: Callable[[Any], list[Any]]) -> None:
    collective = COLLECTIVES[name]
    array = common.values("float64", (ringar.size(), 2), ringar.rank())
    expected = numeric(collective, array, exchange)
    for way in ("eager", "graph", "compiled"):
        slope = analytic(way, collective, array)
        np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=1e-8, err_msg=way)


UNEVEN = ["allgather", "reducescatter", "reducescatter extremes", "reducescatter product"]


@pytest.mark.parametrize("name", UNEVEN)
def test_rows_that_do_not_divide(name: str, exchange: Callable[[Any], list[Any]]) -> None:
    """All-gather: as many rows as the rank has; compiled, and for reduce-scatter: all as many."""
    collective = COLLECTIVES[name]
    for ways in (("eager", "graph"), ("compiled",)):
        uneven = name == "allgather" and "compiled" not in ways
        rows = ringar.rank() + 1 if uneven else ringar.size() + 1
        array = common.values("float64", (rows, 2), ringar.rank())
        expected = numeric(collective, array, exchange)
        for way in ways:
            slope = analytic(way, collective, array)
            np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=1e-8, err_msg=way)


@pytest.mark.parametrize("way", ["eager", "graph"])
def test_alltoall_with_splits(way: str, exchange: Callable[[Any], list[Any]]) -> None:
    splits = [(2 * ringar.rank() + to) % 3 for to in range(ringar.size())]
    array = common.values("float64", (sum(splits), 2), ringar.rank())

    def collective(x: Any) -> list[Any]:
        return [ringar.alltoall(x, splits)[0]]

    expected = numeric(collective, array, exchange)
    np.testing.assert_allclose(analytic(way, collective, array), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.ranks(3, 4)
def test_process_set(way: str) -> None:
    """The members' losses count, and no others."""
    members = ringar.add_process_set([2, 0])
    if members.included():
        arrays = {r: common.values("float64", (4,), r) for r in (0, 2)}

        def collective(t: Any) -> list[Any]:
            return [
                ringar.allreduce(t, ringar.Average, process_set=members),
                ringar.broadcast(t, 2, process_set=members),
            ]

        mean = (arrays[0] + arrays[2]) / 2
        expected = sum((1 + mean) / 2 * weights(4, 0, r) for r in (0, 2))
        if ringar.rank() == 2:
            expected += sum((1 + arrays[2]) * weights(4, 1, r) for r in (0, 2))
        slope = analytic(way, collective, arrays[ringar.rank()])
        np.testing.assert_allclose(slope, expected, rtol=1e-12)
    ringar.remove_process_set(members)


def test_factors_between_horovod_and_ringar(way: str) -> None:
    """The table in docs/migrate-from-horovod.md, for a loss that adds up the result."""

    def gradients(x: tf.Tensor) -> list[tf.Tensor]:
        scatter = partial(ringar.reducescatter, op=ringar.Sum)
        return gradients_of(x, [ringar.allgather, lambda t: ringar.broadcast(t, 0), scatter])

    ranks, root = ringar.size(), ringar.rank() == 0
    gathered, broadcast, scattered = common.run(way, gradients, np.ones(ranks))
    np.testing.assert_array_equal(gathered, np.full(ranks, ranks))
    np.testing.assert_array_equal(broadcast, np.full(ranks, ranks if root else 0))
    np.testing.assert_array_equal(scattered, np.ones(ranks))


def test_ties_share_the_gradient_of_an_extreme(way: str) -> None:
    ranks = ringar.size()
    slope = analytic(way, lambda x: [ringar.allreduce(x, ringar.Max)], np.ones(3))
    total = ringar.allreduce(weights(3, 0) * 2.0, ringar.Sum)
    np.testing.assert_allclose(slope, total / ranks, rtol=1e-12)
    slope = analytic(way, lambda x: [ringar.reducescatter(x, ringar.Max)], np.ones(2 * ranks))
    of_owners = ringar.allgather(weights(2, 0) * 2.0)
    np.testing.assert_allclose(slope, of_owners / ranks, rtol=1e-12)


def gradients_of(x: tf.Tensor, calls: Sequence[Callable[[Any], Any]]) -> list[tf.Tensor]:
    """The gradient of `x` of each of the calls."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        results = [call(x) for call in calls]
    return [tape.gradient(result, x) for result in results]


@pytest.mark.parametrize("dtype", common.FLOATING)
def test_scaled_extremes_in_every_dtype(way: str, dtype: str) -> None:
    """Who holds the extreme does not depend on how products are rounded."""
    inputs = common.of_all_ranks(dtype, (50,))
    prescales = (0.7, -0.7)

    def gradients(x: tf.Tensor) -> list[tf.Tensor]:
        return gradients_of(
            x,
            [
                partial(collective, op=ringar.Max, prescale_factor=prescale, postscale_factor=-1.3)
                for prescale in prescales
                for collective in (ringar.allreduce, ringar.reducescatter)
            ],
        )

    slopes = [a.astype(np.float64) for a in common.run(way, gradients, inputs[ringar.rank()])]
    doubles = np.array([a.astype(np.float64) for a in inputs])
    for prescale, (slope, share) in zip(prescales, (slopes[:2], slopes[2:]), strict=True):
        holds = doubles == (doubles.max(axis=0) if prescale > 0 else doubles.min(axis=0))
        expected = holds[ringar.rank()] / holds.sum(axis=0) * prescale * -1.3
        np.testing.assert_allclose(
            slope, expected * ringar.size(), rtol=0.02, err_msg=str(prescale)
        )
        np.testing.assert_allclose(share, expected, rtol=0.02, err_msg=str(prescale))


def test_factors_have_the_precision_of_the_dtype(way: str) -> None:
    """Finite differences would not see a factor that went through float32."""
    scale: Any = {"prescale_factor": 0.7, "postscale_factor": 1 / 3}
    ops = (ringar.Sum, ringar.Average, ringar.Max, ringar.Product)

    def gradients(x: tf.Tensor) -> list[tf.Tensor]:
        return gradients_of(
            x,
            [
                partial(collective, op=op, **scale)
                for op in ops
                for collective in (ringar.allreduce, ringar.reducescatter)
            ],
        )

    ranks = ringar.size()
    x = common.values("float64", (ranks,), 0)  # equal on all ranks
    slopes = common.run(way, gradients, x)
    for op, slope, part in zip(ops, slopes[::2], slopes[1::2], strict=True):
        share = 1 / 3 / (ranks if op is ringar.Average else 1)
        expected = {
            ringar.Max: np.full(ranks, 0.7 / 3),  # all ranks tie
            ringar.Product: ranks * 0.7**ranks / 3 * x ** (ranks - 1),
        }.get(op, np.full(ranks, 0.7 * share * ranks))
        np.testing.assert_allclose(slope, expected, rtol=1e-14, err_msg=str(op))
        # Every row has one owner, whose loss alone depends on it.
        np.testing.assert_allclose(part, expected / ranks, rtol=1e-14, err_msg=str(op))


def test_a_product_with_zeros(way: str) -> None:
    """Where product / input would be 0 / 0."""
    ranks, rank = ringar.size(), ringar.rank()
    inputs = [np.array([0.0 if r == 0 else 2.0, 0.0, 3.0]) for r in range(ranks)]
    cofactor = np.prod([a for r, a in enumerate(inputs) if r != rank], axis=0, initial=1.0)
    product = np.prod(inputs, axis=0)
    slope = analytic(way, lambda t: [ringar.allreduce(t, ringar.Product)], inputs[rank])
    of_losses = sum((1 + product) * weights(3, 0, r) for r in range(ranks))
    np.testing.assert_allclose(slope, cofactor * of_losses, rtol=1e-12)
    slope = analytic(way, lambda t: [ringar.reducescatter(t, ringar.Product)], inputs[rank])
    shares = np.array_split(product, ranks)
    of_owners = np.concatenate([(1 + s) * weights(s.size, 0, r) for r, s in enumerate(shares)])
    np.testing.assert_allclose(slope, cofactor * of_owners, rtol=1e-12)


def test_compression(way: str) -> None:
    """The gradient travels as the tensors did; inside one host both are exact."""
    kinds = (None, ringar.Compression.fp16, ringar.Compression.bf16)
    ops = (ringar.Sum, ringar.Average, ringar.Max, ringar.Product)

    def gradients(x: tf.Tensor) -> list[tf.Tensor]:
        def loss(op: ringar.ReduceOp, kind: Any) -> Callable[[Any], Any]:
            options = {} if kind is None else {"compression": kind}
            return lambda t: loss_of([tf.cast(ringar.allreduce(t, op, **options), tf.float64)])

        return gradients_of(x, [loss(op, kind) for op in ops for kind in kinds])

    slopes = common.run(way, gradients, common.values("float32", (5,), 3 + ringar.rank()))
    for i, op in enumerate(ops):
        plain, *compressed_slopes = slopes[3 * i : 3 * i + 3]
        for slope in compressed_slopes:
            np.testing.assert_array_equal(slope, plain, err_msg=str(op))


def test_gradients_name_the_wire() -> None:
    @tf.function
    def slope(x: tf.Tensor) -> tf.Tensor:
        options: Any = {"compression": ringar.Compression.bf16, "algorithm": "hierarchical"}
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(ringar.allreduce(x, ringar.Sum, **options))
            loss += tf.reduce_sum(ringar.allreduce(x, ringar.Max, **options))
        return tape.gradient(loss, x)

    graph = slope.get_concrete_function(tf.TensorSpec([3], tf.float32)).graph
    specs = [op.get_attr("spec").decode() for op in graph.get_operations() if "Ringar" in op.type]
    calls = [Call.parse(spec) for spec in specs]
    assert {call.algorithm for call in calls} == {"hierarchical"}
    # Both allreduces and the gradients of both, but not the search for who holds the maximum: a
    # maximum that was rounded on its way is nobody's.
    wires = [call.wire for call in calls]
    assert wires.count("bfloat16") == 4
    assert wires.count("") == 2


def test_second_derivatives(way: str) -> None:
    def curvature(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(ringar.allreduce(x, ringar.Average) ** 3)
            slope = inner.gradient(loss, x)
        return outer.gradient(slope, x)

    if way != "eager":
        curvature = tf.function(curvature, jit_compile=way == "compiled")
    # The sum of the ranks' losses is n m^3 with m the mean; its slope 3 m^2, summed over the ranks
    # once more by the second gradient: n times 6 m / n.
    array = np.array([1.0, 2.0]) + ringar.rank()
    mean = np.array([1.0, 2.0]) + (ringar.size() - 1) / 2
    np.testing.assert_allclose(curvature(tf.constant(array)).numpy(), 6 * mean, rtol=1e-12)


def test_an_output_that_the_loss_ignores(way: str) -> None:
    def collective(x: Any) -> list[Any]:
        return ringar.grouped_allreduce([x, x * 5.0], ringar.Sum)[:1]

    slope = analytic(way, collective, np.ones(2))
    total = ringar.allreduce((1 + ringar.size()) * weights(2, 0), ringar.Sum)
    np.testing.assert_allclose(slope, total, rtol=1e-12)


def test_upstream_gradients_of_another_dtype(way: str) -> None:
    """A user's `output_gradients` may be float32 where the results are float64."""

    def slope(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            results = ringar.grouped_allreduce([x, x * 2.0], ringar.Sum)
            results += ringar.grouped_reducescatter([x * 3.0, x], ringar.Sum)
        ones = [tf.ones(tf.shape(result), tf.float32) for result in results]
        return [tape.gradient(results, x, output_gradients=ones)]

    ranks = ringar.size()
    (gradient,) = common.run(way, slope, np.ones(ranks))
    np.testing.assert_allclose(gradient, np.full(ranks, 3.0 * ranks + 4.0), rtol=1e-12)


def many_gathered(x: tf.Tensor) -> list[tf.Tensor]:
    """One collective, whose gradient is many of one shape."""
    return list(ringar.grouped_allgather([x * (i + 1.0) for i in range(8)]))


@pytest.mark.ranks(2, 3, 4)
def test_gradients_that_tensorflow_does_not_order(exchange: Callable[[Any], list[Any]]) -> None:
    """In a graph of TensorFlow 1, and in the function that TensorFlow derives from a function."""
    array = common.values("float64", (3,), ringar.rank())
    expected = numeric(many_gathered, array, exchange)
    graph = tf.Graph()
    with graph.as_default():
        x = tf.constant(array)
        slope = tf.gradients(loss_of(many_gathered(x)), x)
    function = tf.function(many_gathered)
    session = tf.compat.v1.Session(graph=graph)
    for _ in range(10):
        np.testing.assert_allclose(session.run(slope)[0], expected, rtol=1e-6, atol=1e-8)
        outside = analytic("eager", function, array)
        np.testing.assert_allclose(outside, expected, rtol=1e-6, atol=1e-8)
    session.close()


def test_integers_have_none() -> None:
    x = tf.constant([1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = ringar.allreduce(x, ringar.Sum)
    assert tape.gradient(y, x) is None
