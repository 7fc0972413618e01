"""Send: every dtype, in every way; order; what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.collectives.statistics import Traffic
from tests.collectives import common
from tests.collectives.messages import WAYS, neighbors, pass_on, spec_of

SHAPES = [(), (0,), (5,), (3, 0, 2), (2, 3, 4), (1, 2, 1, 1, 3, 1, 1, 1), (40_001,)]
several = pytest.mark.ranks(2, 3, 4)


@several
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", common.MOVED)
def test_every_dtype(way: str, dtype: str) -> None:
    _, before = neighbors()
    inputs = [common.of_all_ranks(dtype, shape) for shape in SHAPES]
    messages = [arrays[ringar.rank()] for arrays in inputs]
    expected = [arrays[before] for arrays in inputs]
    received = pass_on(way, messages, [spec_of(a) for a in expected], name="ring")
    common.assert_all_same(received, expected, (way, dtype))


@several
@pytest.mark.parametrize("way", WAYS)
def test_several_dtypes_at_once(way: str) -> None:
    """A message for each; rank 0, the only one that must not wait for room, begins."""
    rank, last = ringar.rank(), ringar.size() - 1
    kinds = [("float32", (2, 3)), ("int64", (4,)), ("float32", ()), ("bool", (7,)), ("int64", (1,))]
    arrays = [common.values(dtype, shape, i) for i, (dtype, shape) in enumerate(kinds)]

    def stage(*values: Any) -> list[Any]:
        maps = list(values)
        if rank > 0:
            maps = ringar.recv([spec_of(a) for a in arrays], rank - 1, name="maps")
        if rank < last:
            ringar.send(
                [v.numpy() for v in maps] if way == "numpy" else maps, rank + 1, name="maps"
            )
        return maps

    run = tf.function(stage) if way == "graph" else stage
    common.assert_all_same(run(*map(tf.constant, arrays)), arrays, way)


@several
def test_what_tensors_may_be() -> None:
    """A variable, a NumPy scalar, an array that is not contiguous, a tuple; and no tensors."""
    after, before = neighbors()
    pair, scalar = tf.TensorSpec([2]), tf.TensorSpec([])
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    cases: list[tuple[Any, Any, list[Any]]] = [
        (tf.Variable([1.0, 2.0]), pair, [[1, 2]]),
        (np.float32(3), scalar, [3]),
        (transposed, tf.TensorSpec([3, 2]), [transposed.tolist()]),
        ((tf.constant(1.0), np.ones(2, np.float32)), (scalar, pair), [1, [1, 1]]),
        ([], [], []),
    ]
    for tensors, specs, expected in cases:
        ringar.send(tensors, to=np.int64(after))
        received = ringar.recv(specs, source=before)
        received = received if isinstance(received, list) else [received]
        assert [result.numpy().tolist() for result in received] == expected


@several
def test_many_messages_of_random_sizes() -> None:
    """Two from each rank to each other one at a time, in orders that differ from rank to rank."""
    size, rank = ringar.size(), ringar.rank()
    rng = np.random.default_rng(7)
    rows = rng.integers(0, 300, (40, size, size)) * rng.choice([1, 1, 1, 200], (40, size, size))

    def array(turn: int, source: int, to: int) -> np.ndarray:
        return common.values("float32", (rows[turn, source, to], 3), 100 * turn + 10 * source + to)

    for turn in range(0, 40, 2):
        peers = [r for r in range(size) if r != rank]
        for to in np.random.default_rng([turn, rank]).permutation(peers):
            ringar.send(array(turn, rank, to), to)
            ringar.send(tf.constant(array(turn + 1, rank, to)), to)
        for source in np.random.default_rng([rank, turn]).permutation(peers):
            for t in (turn, turn + 1):
                received = ringar.recv(tf.TensorSpec([None, 3]), source)
                common.assert_same(received, array(t, source, rank), (t, source))


@several
def test_a_message_waits_without_its_receiver(exchange: Callable[[Any], list[Any]]) -> None:
    """Two are on their way before anybody has asked for one."""
    after, before = neighbors()
    for i in range(2):
        ringar.send(np.full(1000, i), after)
    exchange("sent")
    for i in range(2):
        assert (ringar.recv(tf.TensorSpec([1000], tf.int64), before).numpy() == i).all()


@several
@pytest.mark.parametrize("way", WAYS)
def test_tags(way: str) -> None:
    """Each tag has a stream of its own, with two buffers; they may be received in any order."""
    after, before = neighbors()
    tags = (1023, 0, np.int64(7))

    def exchange(rank: tf.Tensor) -> list[tf.Tensor]:
        for turn in range(2):
            for tag in tags:
                value = np.float32(ringar.rank()) if way == "numpy" else rank
                message = value + np.float32(10 * turn + int(tag))
                ringar.send(message, after, tag=tag, name="tagged")
        return [
            ringar.recv(tf.TensorSpec([]), before, tag=tag, name="tagged")
            for tag in reversed(tags)
            for _ in range(2)
        ]

    run = tf.function(exchange) if way == "graph" else exchange
    received = [float(value) for value in run(tf.constant(float(ringar.rank())))]
    assert received == [before + 10.0 * turn + tag for tag in reversed(tags) for turn in range(2)]


@pytest.mark.parametrize("tag", [-1, 1024, 1.0, "1", None, True], ids=repr)
def test_bad_tags(tag: Any, size: int, rank: int) -> None:
    other = (rank + 1) % max(size, 2)
    for function in (
        lambda: ringar.send(np.ones(3), other, tag=tag),
        lambda: ringar.recv(tf.TensorSpec([3]), other, tag=tag),
    ):
        with pytest.raises(ValueError, match=r"`tag` must be .* from 0 to 1023. Received: tag="):
            function()


@several
def test_process_sets(exchange: Callable[[Any], list[Any]]) -> None:
    """`to` and `source` count within the set, whose ranks are in an order of their own."""
    size, rank = ringar.size(), ringar.rank()
    backwards = ringar.add_process_set(list(range(size))[::-1])
    pair = ringar.add_process_set([size - 1, 0])
    if rank == 0:
        ringar.send(tf.ones([2]), size - 2, process_set=backwards)  # to rank 1 of the job
        ringar.send(tf.zeros([3]), 0, process_set=pair)
    if rank == 1:
        received = ringar.recv(tf.TensorSpec([2]), size - 1, process_set=backwards)
        assert received.numpy().tolist() == [1, 1]
    if rank == size - 1:
        received = ringar.recv(tf.TensorSpec([3]), 1, process_set=pair)
        assert received.numpy().tolist() == [0, 0, 0]
    if not pair.included():
        with pytest.raises(ringar.errors.MismatchError, match=r"expected a member of process set"):
            ringar.send(np.ones(2), 0, process_set=pair)
    exchange("done")
    ringar.remove_process_set(pair)
    ringar.remove_process_set(backwards)
    with pytest.raises(ValueError, match="a process set that is in use"):
        ringar.send(np.ones(2), 0, process_set=pair)


@several
def test_statistics() -> None:
    _, before = neighbors()
    ringar.reset_stats()
    array = np.ones((5, 7))
    for name in ("stage/maps", "stage/maps", "stage/slopes"):
        pass_on("eager", [array], [spec_of(array)], name=name)
    assert ringar.stats() == {
        "stage/maps": Traffic(2, 2 * array.nbytes), "stage/slopes": Traffic(1, array.nbytes)
    }  # fmt: skip
    assert ringar.stats(by="collective") == {"send": Traffic(3, 3 * array.nbytes)}
    assert before != ringar.rank()


BAD_RANKS: list[Any] = [-1, 99, 1.0, "1", None, True, [1]]


@pytest.mark.parametrize("to", BAD_RANKS, ids=repr)
def test_bad_ranks(to: Any) -> None:
    with pytest.raises(ValueError, match=rf"`to` must be .*Received: to={re.escape(repr(to))}"):
        ringar.send(np.ones(3), to)
    with pytest.raises(ValueError, match=r"`source` must be .*Received: source="):
        ringar.recv(tf.TensorSpec([3]), to)


def test_messages_to_oneself_are_refused(rank: int, size: int) -> None:
    peers = "which this process set has none" if size == 1 else rf"from 0 to {size - 1}, and not"
    for function in (lambda: ringar.send(np.ones(3), rank), tf.function(lambda: send_ones(rank))):
        with pytest.raises(ValueError, match=rf"`to` must be .*{peers}.*Received: to={rank}"):
            function()


def send_ones(to: int) -> None:
    ringar.send(tf.ones([3]), to)


@several
def test_what_cannot_be_sent() -> None:
    after, _ = neighbors()
    with pytest.raises(ringar.errors.UnsupportedError, match=r"send: expected a dtype out of"):
        ringar.send(tf.constant("text"), after)
    with pytest.raises(ValueError, match=r"`tensors` must have at most 8 dimensions"):
        ringar.send(np.ones((1,) * 9), after)


@several
def test_compiled_functions_refuse_messages() -> None:
    after, before = neighbors()
    send = tf.function(lambda: send_ones(after), jit_compile=True)
    recv = tf.function(lambda: ringar.recv(tf.TensorSpec([3]), before), jit_compile=True)
    for function, name in ((send, "send"), (recv, "recv")):
        with pytest.raises(
            ringar.errors.UnsupportedError, match=rf"rank \d \| {name}: .*Leave it out of jit_comp"
        ):
            function()
