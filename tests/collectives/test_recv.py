"""Recv: what it is given to expect, its place among collectives in a function, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.collectives import common
from tests.collectives.messages import WAYS, neighbors, pass_on, spec_of

pytestmark = pytest.mark.ranks(2, 3, 4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("axes", [(), (0,), (1,), (0, 2), (0, 1, 2)], ids=str)
def test_unknown_dimensions(way: str, axes: tuple[int, ...]) -> None:
    _, before = neighbors()
    arrays = [common.values("float32", (r + 2, 3, 2 * r), r) for r in range(ringar.size())]
    spec = spec_of(arrays[before], *axes)
    received = pass_on(way, [arrays[ringar.rank()]], [spec])
    common.assert_all_same(received, [arrays[before]])


def test_shapes_in_a_graph() -> None:
    """What the spec says is known when the function is traced; in a loop sizes may change."""
    after, before = neighbors()

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        ringar.send([x, tf.reduce_sum(x)], after)
        received, total = ringar.recv([tf.TensorSpec([None, 3]), tf.TensorSpec([])], before)
        assert received.shape.as_list() == [None, 3]
        assert total.shape.as_list() == []
        return received * 2.0 + 0.0 * total

    for rows in (0, 1, 5000, 3):
        assert step.get_concrete_function(tf.TensorSpec([None, 3]))(tf.ones([rows, 3])).shape == (
            rows,
            3,
        )


def test_a_ring_in_both_directions_with_collectives_between() -> None:
    """Fifty steps, in each of which data go around both ways and are added up on the way."""
    size, rank = ringar.size(), ringar.rank()
    after, before = neighbors()

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        right, left, results = x, -x, []
        for i in range(size):
            ringar.send(right, after, name=f"right {i}")
            ringar.send(left, before, name=f"left {i}")
            right = ringar.recv(tf.TensorSpec([None]), before, name=f"right {i}")
            total = ringar.allreduce(right + left, ringar.Sum, name=f"total {i}")
            left = ringar.recv(tf.TensorSpec([None]), after, name=f"left {i}")
            results.append(total)
        return [right, left, *results]

    for turn in range(50):
        length = [1, 3000, 200_000][turn % 3] if turn < 12 else 50
        right, left, *totals = step.get_concrete_function(tf.TensorSpec([None]))(
            tf.fill([length], float(rank + turn))
        )
        # Around the ring once: everybody's own again, with its sign.
        np.testing.assert_array_equal(right, np.full(length, rank + turn, np.float32))
        np.testing.assert_array_equal(left, np.full(length, -rank - turn, np.float32))
        for total in totals:
            assert total.numpy().tolist() == [0.0] * length


def test_all_receive_before_they_send() -> None:
    """In a function a message that is not there yet does not hold up those that follow."""
    after, before = neighbors()

    @tf.function
    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        messages = [ringar.recv(tf.TensorSpec([2]), before) for _ in range(10)]
        total = ringar.allreduce(x, ringar.Sum)
        for i in range(10):
            ringar.send(x + float(i), after)
        return tf.stack(messages), total

    for turn in range(5):
        messages, total = step(tf.fill([2], float(ringar.rank() + turn)))
        assert messages.numpy()[:, 0].tolist() == [before + turn + i for i in range(10)]
        assert total.numpy()[0] == sum(r + turn for r in range(ringar.size()))


def test_a_pipeline_of_ranks() -> None:
    """Each rank adds to what comes, in eager code and in functions by turns."""
    rank, last = ringar.rank(), ringar.size() - 1

    def stage(x: tf.Tensor) -> tf.Tensor:
        if rank > 0:
            x = ringar.recv(tf.TensorSpec([100]), rank - 1, name="maps")
        y = x + 1.0
        if rank < last:
            ringar.send(y, rank + 1, name="maps")
        return y

    traced = tf.function(stage)
    for turn in range(30):
        result = (traced if turn % 2 else stage)(tf.fill([100], float(turn)))
        assert result.numpy()[0] == turn + rank + 1


def test_loops_and_branches() -> None:
    after, before = neighbors()

    @tf.function
    def step(x: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
        for i in tf.range(times):
            if i % 2 == 0:
                ringar.send(x, after, name="even")
                x = ringar.recv(tf.TensorSpec([None]), before, name="even")
            else:
                ringar.send(tf.concat([x, x], 0), after, name="odd")
                x = ringar.recv(tf.TensorSpec([None]), before, name="odd")[:3]
        return x

    for times in (0, 1, 7):
        x = step.get_concrete_function(tf.TensorSpec([None]), tf.TensorSpec([], tf.int32))(
            tf.fill([3], float(ringar.rank())), tf.constant(times)
        )
        assert x.numpy().tolist() == [(ringar.rank() - times) % ringar.size()] * 3


def test_messages_without_use_are_received() -> None:
    after, before = neighbors()

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        ringar.send(x, after, name="dropped")
        ringar.recv(tf.TensorSpec([3]), before, name="dropped")
        ringar.send(x + 1.0, after, name="kept")
        return ringar.recv(tf.TensorSpec([3]), before, name="kept")

    for _ in range(10):
        assert step(tf.ones([3])).numpy().tolist() == [2, 2, 2]


def test_no_gradient_flows_through_messages() -> None:
    after, before = neighbors()
    x = tf.Variable([2.0])
    with tf.GradientTape() as tape:
        ringar.send(x * 3.0, after)
        y = ringar.recv(tf.TensorSpec([1]), before) + x
    assert y.numpy() == [8.0]
    assert tape.gradient(y, x).numpy() == [1.0]


Ask = Callable[[], object]


def refused(ask: Ask, numpy: bool = False) -> str:
    kind = ringar.errors.MismatchError if numpy else tf.errors.InvalidArgumentError
    with pytest.raises(kind) as caught:
        ask()
    return str(caught.value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("sent_shape", "spec", "names"),
    [
        ([3], tf.TensorSpec([4]), ("x", "x")),
        ([3, 1], tf.TensorSpec([None]), ("x", "x")),
        ([2, 3], tf.TensorSpec([None, 4]), ("x", "x")),
        ([3], tf.TensorSpec([3], tf.float64), ("x", "x")),
        ([3], tf.TensorSpec([3]), ("x", "y")),
        ([3], tf.TensorSpec([3]), (None, "y")),
    ],
    ids=["dims", "rank", "tail", "dtype", "name", "no name"],
)
def test_both_ends_of_a_mismatch_are_told(
    way: str,
    sent_shape: list[int],
    spec: tf.TensorSpec,
    names: tuple[str | None, str],
    exchange: Callable[[Any], list[Any]],
) -> None:
    def as_asked(ask: Ask) -> Any:
        return tf.function(ask)() if way == "graph" else ask()

    def send(shape: list[int], name: str | None) -> Any:
        array = np.ones(shape, np.float32)
        if way == "numpy":
            return ringar.send(array, 1, name=name)
        return as_asked(lambda: ringar.send(tf.constant(array), 1, name=name))

    def recv(spec: tf.TensorSpec, name: str) -> Any:
        return as_asked(lambda: ringar.recv(spec, 0, name=name))

    if ringar.rank() == 0:
        send(sent_shape, names[0])
        exchange("sent")
        exchange("refused")
        text = refused(lambda: send([5], "next"), way == "numpy")
        assert 'rank 0 | send "next" to rank 1 of float32[5]: this one was not sent, since' in text
        send([5], "next")
    elif ringar.rank() == 1:
        exchange("sent")
        text = refused(lambda: recv(spec, names[1]))
        assert f'rank 1 | recv "{names[1]}" from rank 0 of ' in text
        exchange("refused")
        assert recv(tf.TensorSpec([None]), "next").shape == (5,)
    else:
        exchange("sent")
        exchange("refused")
        return
    name = f' "{names[0]}"' if names[0] else ""
    assert f"\n  rank 0: send{name} of float32[{','.join(map(str, sent_shape))}]" in text
    assert f'\n  rank 1: recv "{names[1]}" of {spec.dtype.name}[' in text
    assert "look for a branch" in text


def test_another_number_of_tensors_is_a_mismatch(exchange: Callable[[Any], list[Any]]) -> None:
    if ringar.rank() == 0:
        ringar.send([tf.ones([2])] * 3, 1)
    if ringar.rank() == 1:
        text = refused(lambda: ringar.recv([tf.TensorSpec([2])] * 2, 0))
        assert "rank 0: send of float32[2], float32[2], float32[2]\n" in text
        assert "rank 1: recv of float32[2], float32[2]\n" in text
    exchange("refused")
    if ringar.rank() == 0:
        refused(lambda: ringar.send(tf.ones([2]), 1))


def test_another_process_set_is_a_mismatch(exchange: Callable[[Any], list[Any]]) -> None:
    pair = ringar.add_process_set([0, 1])
    if ringar.rank() == 0:
        ringar.send(tf.ones([2]), 1, process_set=pair)
    if ringar.rank() == 1:
        text = refused(lambda: ringar.recv(tf.TensorSpec([2]), 0))
        assert f"rank 0: send of float32[2] in process set {pair.process_set_id}\n" in text
    exchange("refused")
    if ringar.rank() == 0:
        refused(lambda: ringar.send(tf.ones([2]), 1, process_set=pair))
    ringar.remove_process_set(pair)


@pytest.mark.parametrize(
    "specs", [tf.TensorSpec(None), [tf.TensorSpec([1]), [1]], np.ones(3), "float32", None], ids=str
)
def test_specs_must_be_specs(specs: Any) -> None:
    with pytest.raises(ValueError, match=r"`specs` must be a tf.TensorSpec of a known.*Received: "):
        ringar.recv(specs, neighbors()[1])


def test_what_cannot_be_received() -> None:
    with pytest.raises(ringar.errors.UnsupportedError, match=r"recv: expected a dtype out of"):
        ringar.recv(tf.TensorSpec([1], tf.string), neighbors()[1])
    with pytest.raises(ValueError, match=r"`specs` must have at most 8 dimensions"):
        ringar.recv(tf.TensorSpec([1] * 9), neighbors()[1])
