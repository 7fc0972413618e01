"""Collectives among some of the ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.collectives import common


def memberships() -> list[list[int]]:
    """Sets worth having for this number of ranks: alone, all in another order, some."""
    ranks = list(range(ringar.size()))
    sets = [[ranks[-1]], ranks[::-1], ranks[1:] or ranks, ranks[::2]]
    return [*sets, [2, 0]] if len(ranks) > 2 else sets


@pytest.fixture
def process_sets() -> Iterator[list[ringar.ProcessSet]]:
    sets = [ringar.add_process_set(ranks) for ranks in memberships()]
    yield sets
    for process_set in sets:
        ringar.remove_process_set(process_set)


def test_what_a_set_says_of_itself(process_sets: list[ringar.ProcessSet]) -> None:
    rank = ringar.rank()
    for ranks, process_set in zip(memberships(), process_sets, strict=True):
        assert process_set.ranks == ranks
        assert process_set.size() == len(ranks)
        assert process_set.included() == (rank in ranks)
        assert process_set.rank() == (ranks.index(rank) if rank in ranks else -1)
    ids = [process_set.process_set_id for process_set in process_sets]
    assert len(set(ids)) == len(ids)
    assert 0 not in ids
    assert ringar.global_process_set.process_set_id == 0
    assert ringar.global_process_set.ranks == list(range(ringar.size()))


def test_every_collective(mode: str, process_sets: list[ringar.ProcessSet]) -> None:
    """Numbered and ordered by the place in the set, not by the rank in the job."""
    for seed, process_set in enumerate(process_sets):
        if not process_set.included():
            continue
        members = process_set.ranks
        arrays = [
            common.values("float32", (2 * process_set.size(), 3), 10 * seed + r) for r in members
        ]
        root = members[-1]

        def collectives(
            t: tf.Tensor, root: int = root, process_set: ringar.ProcessSet = process_set
        ) -> list[tf.Tensor]:
            where: Any = {"process_set": process_set}
            return [
                ringar.allreduce(t, **where),
                ringar.allgather(t, **where),
                ringar.reducescatter(t, ringar.Sum, **where),
                ringar.broadcast(t, root, **where),
                ringar.alltoall(t, **where),
            ]

        place = process_set.rank()
        results = common.run(mode, collectives, arrays[place])
        rows = slice(2 * place, 2 * place + 2)
        expected = [
            common.reduced(ringar.Average, arrays),
            np.concatenate(arrays),
            common.reduced(ringar.Sum, arrays)[rows],
            arrays[-1],
            np.concatenate([a[rows] for a in arrays]),
        ]
        common.assert_all_same(results, expected, members)


def test_two_sets_in_a_row(mode: str, process_sets: list[ringar.ProcessSet]) -> None:
    """A rank that is in several sets takes part in each, in the order of the program."""

    def collectives(t: tf.Tensor) -> list[tf.Tensor]:
        return [
            ringar.allreduce(t * (turn + 1), ringar.Sum, process_set=process_set)
            for turn in range(3)
            for process_set in [*process_sets, ringar.global_process_set]
            if process_set.included()
        ]

    array = np.full(50, ringar.rank() + 1, np.float32)
    results = common.run(mode, collectives, array)
    expected = [
        np.full(50, (turn + 1) * sum(r + 1 for r in process_set.ranks), np.float32)
        for turn in range(3)
        for process_set in [*process_sets, ringar.global_process_set]
        if process_set.included()
    ]
    common.assert_all_same(results, expected)


def test_sets_work_apart_from_each_other() -> None:
    """Each rank alone runs as many as it likes, while others do other things."""
    singletons = [ringar.add_process_set([r]) for r in range(ringar.size())]
    process_set = singletons[ringar.rank()]
    for _ in range(10 * ringar.rank()):
        assert ringar.allreduce(np.ones(3), ringar.Sum, process_set=process_set).sum() == 3
    assert ringar.allreduce(np.ones(3), ringar.Sum).sum() == 3 * ringar.size()
    for singleton in singletons:
        ringar.remove_process_set(singleton)


@pytest.mark.ranks(3, 4)
def test_sets_in_a_circle() -> None:
    """Each rank issues first what the rank before it issues last: no set waits for another one."""
    sets = [ringar.add_process_set(ranks) for ranks in ([0, 1], [1, 2], [0, 2])]
    order = [(0, 2), (1, 0), (2, 1), ()][ringar.rank()]

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        return [
            ringar.allreduce(
                tf.fill([700_000], x), ringar.Sum, process_set=sets[i], name=f"of set {i}"
            )
            for i in order
        ]

    for _ in range(5):
        results = step(tf.constant(float(ringar.rank())))
        for i, result in zip(order, results, strict=True):
            np.testing.assert_array_equal(result, np.full(700_000, sum(sets[i].ranks), np.float32))
    for process_set in sets:
        ringar.remove_process_set(process_set)


def test_a_thread_for_each_of_two_sets(exchange: Callable[[Any], list[Any]]) -> None:
    """They take turns as they like, on each rank in another order."""
    ranks = list(range(ringar.size()))
    sets = [ringar.add_process_set(ranks) for _ in range(2)]
    sums: list[float] = []

    def work(i: int) -> None:
        for turn in range(20):
            if (i + turn) % 2 == ringar.rank() % 2:
                time.sleep(0.001)
            ones = np.ones(3 if turn % 2 else 100_000, np.float32)
            sums.append(ringar.allreduce(ones, ringar.Sum, process_set=sets[i]).max())

    threads = [threading.Thread(target=work, args=[i]) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    exchange("done")
    assert sums == [ringar.size()] * 40
    for process_set in sets:
        ringar.remove_process_set(process_set)


def test_come_and_go() -> None:
    ranks = list(range(ringar.size()))
    for turn in range(20):
        process_set = ringar.add_process_set(ringar.ProcessSet(ranks[::-1] if turn % 2 else ranks))
        result = ringar.allreduce(np.full(10_000, turn), ringar.Sum, process_set=process_set)
        assert (result == turn * ringar.size()).all()
        ringar.remove_process_set(process_set)
        assert process_set.process_set_id is None


def test_a_removed_set_is_refused() -> None:
    process_set = ringar.add_process_set([0])
    ringar.remove_process_set(process_set)
    with pytest.raises(ValueError, match="a process set that is in use") as caught:
        ringar.allreduce(np.ones(2), process_set=process_set, name="t")
    message = str(caught.value)
    assert message.startswith(f'rank {ringar.rank()} | allreduce "t": expected a process set')
    assert "received ProcessSet(ranks=[0], process_set_id=None). Call ringar.add" in message
    with pytest.raises(ValueError, match="must have been added"):
        ringar.remove_process_set(process_set)


def test_a_function_outlives_its_set() -> None:
    """The traced call names a set that is gone: an error, not another set's collective."""
    process_set = ringar.add_process_set(list(range(ringar.size())))
    reduce = tf.function(lambda t: ringar.allreduce(t, process_set=process_set))
    reduce(tf.ones([2]))
    ringar.remove_process_set(process_set)
    other = ringar.add_process_set(list(range(ringar.size())))
    with pytest.raises(tf.errors.InvalidArgumentError, match="never added or is removed"):
        reduce(tf.ones([2]))
    ringar.remove_process_set(other)


@pytest.mark.ranks(2, 3, 4)
def test_strangers_are_refused(mode: str) -> None:
    """On that rank alone, at once; the members do not notice."""
    process_set = ringar.add_process_set(list(range(1, ringar.size())))
    errors = (ringar.errors.MismatchError, tf.errors.OpError)
    for collective in (
        ringar.allreduce,
        ringar.allgather,
        ringar.reducescatter,
        ringar.alltoall,
        ringar.broadcast,
    ):
        options = {"root_rank": 1} if collective is ringar.broadcast else {}

        def call(
            t: tf.Tensor, collective: object = collective, options: dict[str, int] = options
        ) -> list[tf.Tensor]:
            return [collective(t, **options, process_set=process_set)]  # type: ignore[operator]

        array = np.ones((12, 2), np.float32)
        if process_set.included():
            common.run(mode, call, array)
            continue
        with pytest.raises(errors, match=r"rank 0 \| expected a member of process set") as caught:
            common.run(mode, call, array)
        assert f"(ranks {process_set.ranks}), received rank 0" in str(caught.value)
        assert "included() is true" in str(caught.value)
    ringar.barrier()
    ringar.remove_process_set(process_set)


def test_bad_sets_are_refused() -> None:
    size = ringar.size()
    for ranks in ([], [size], [-1], [0, 0]):
        with pytest.raises(ValueError, match=f"different ranks from 0 to {size - 1}"):
            ringar.add_process_set(ranks)
    if size > 1:  # wrong on one rank alone
        kind = ValueError if ringar.rank() == 0 else ringar.errors.MismatchError
        with pytest.raises(kind, match=f"different ranks from 0 to {size - 1}"):
            ringar.add_process_set([0, size] if ringar.rank() == 0 else [0])
    process_set = ringar.add_process_set([0])
    with pytest.raises(ValueError, match="not have been added before"):
        ringar.add_process_set(process_set)
    ringar.remove_process_set(process_set)
    with pytest.raises(ValueError, match="not be the global one"):
        ringar.remove_process_set(ringar.global_process_set)


@pytest.mark.ranks(2, 3, 4)
def test_a_root_outside_the_set_is_refused() -> None:
    process_set = ringar.add_process_set([0])
    if process_set.included():
        with pytest.raises(ValueError, match=r"rank 0 \| broadcast: .* ranks \[0\]; received 1\. "):
            ringar.broadcast(np.ones(2), 1, process_set=process_set)
    ringar.remove_process_set(process_set)


@pytest.mark.ranks(2, 3, 4)
def test_ranks_must_add_the_same_set() -> None:
    ranks = [0, 1] if ringar.rank() == 0 else [1, 0]
    with pytest.raises(ringar.errors.MismatchError) as caught:
        ringar.add_process_set(ranks)
    assert 'rank 0: add_process_set "[0, 1]"' in str(caught.value)
    majority = {2: "rank 1", 3: "ranks 1, 2 (2 of 3)", 4: "ranks 1-3 (3 of 4)"}[ringar.size()]
    assert f'{majority}: add_process_set "[1, 0]"' in str(caught.value)
    ringar.remove_process_set(ringar.add_process_set([1, 0]))
