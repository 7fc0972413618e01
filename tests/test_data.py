"""ringar.data.shard: every rank its share, and as many steps on each."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ringar import data
from ringar.job import place

pytestmark = pytest.mark.ranks(1)

REMAINDERS = ["drop", "wrap"]


def shares(monkeypatch: pytest.MonkeyPatch, source: Any, size: int, **options: Any) -> list[Any]:
    """What each of `size` ranks gets; every one of them asks in turn."""
    result = []
    monkeypatch.setattr(place, "size", lambda: size)
    for rank in range(size):
        monkeypatch.setattr(place, "rank", lambda rank=rank: rank)
        result.append(data.shard(source() if callable(source) else source, **options))
    return result


def elements(dataset: tf.data.Dataset) -> list[Any]:
    return [tf.nest.map_structure(lambda t: np.asarray(t).tolist(), e) for e in dataset]


def unknown(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same elements, whose number TensorFlow does not know."""
    return dataset.filter(lambda *_: True)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [4, 5, 6, 7, 12])
def test_equal_steps_whatever_the_remainder(
    count: int, size: int, remainder: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = tf.data.Dataset.range(count)
    dataset = dataset if known else unknown(dataset)
    ranks = shares(monkeypatch, dataset, size, remainder=remainder)
    got = [elements(rank) for rank in ranks]
    rounds = count // size if remainder == "drop" else -(-count // size)
    assert [len(rank) for rank in got] == [rounds] * size
    # Round after round, the ranks' elements are the dataset's in their order, and then its first.
    dealt = [got[i % size][i // size] for i in range(rounds * size)]
    assert dealt == [i % count for i in range(rounds * size)]
    if known:
        assert [int(rank.cardinality()) for rank in ranks] == [rounds] * size


def test_fewer_elements_than_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    one = tf.data.Dataset.range(1)
    for source in (one, np.zeros(1)):
        with pytest.raises(ValueError, match="at least one element for each of 4 ranks"):
            shares(monkeypatch, source, 4)
    for source in (one, unknown(one)):
        got = [elements(rank) for rank in shares(monkeypatch, source, 4, remainder="wrap")]
        assert got == [[0]] * 4
    assert [elements(rank) for rank in shares(monkeypatch, unknown(one), 4)] == [[]] * 4


def test_endless_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    for remainder in REMAINDERS:
        ranks = shares(monkeypatch, tf.data.Dataset.range(3).repeat(), 2, remainder=remainder)
        assert [elements(rank.take(3)) for rank in ranks] == [[0, 2, 1], [1, 0, 2]]
        assert all(int(rank.cardinality()) == tf.data.INFINITE_CARDINALITY for rank in ranks)


@pytest.mark.parametrize("known", [True, False])
def test_batches_are_dealt_whole_and_structures_kept(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = np.arange(10).reshape(5, 2), {"label": np.arange(5), "weight": np.ones(5)}
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
    dataset = dataset if known else unknown(dataset)
    first, second = shares(monkeypatch, dataset, 2)
    assert first.element_spec == dataset.element_spec
    assert [e[1]["label"] for e in elements(first)] == [[0, 1]]
    assert [e[1]["label"] for e in elements(second)] == [[2, 3]]
    # The last batch has one row only: rounds may hold batches of several sizes.
    wrapped = shares(monkeypatch, dataset, 2, remainder="wrap")
    assert [[e[1]["label"] for e in elements(rank)] for rank in wrapped] == [
        [[0, 1], [4]],
        [[2, 3], [0, 1]],
    ]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_batches_together_are_one_process_batch(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = tf.data.Dataset.range(24)
    ranks = [elements(share.batch(2)) for share in shares(monkeypatch, dataset, size)]
    whole = elements(dataset.batch(2 * size))
    assert [sorted(itertools.chain(*parts)) for parts in zip(*ranks, strict=True)] == whole


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_split_batches_keeps_the_global_batch(
    drop_remainder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.arange(19)
    dataset = tf.data.Dataset.from_tensor_slices((x, x * 2)).batch(8, drop_remainder=drop_remainder)
    ranks = shares(monkeypatch, dataset, 4, split_batches=True)
    for rank, share in enumerate(ranks):
        got = elements(share)
        # The last batch has three rows, too few for four ranks.
        own = [[2 * rank, 2 * rank + 1], [2 * rank + 8, 2 * rank + 9]]
        assert got == [(rows, [2 * r for r in rows]) for rows in own]
        assert share.element_spec[0].shape.as_list() == ([2] if drop_remainder else [None])
        assert int(share.cardinality()) == (2 if drop_remainder else tf.data.UNKNOWN_CARDINALITY)


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_arrays(size: int, remainder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = np.arange(7)
    source: dict[str, Any] = {"x": np.arange(14).reshape(7, 2), "y": [one, (one * 2,)]}
    ranks = shares(monkeypatch, source, size, remainder=remainder)
    rows = 7 // size if remainder == "drop" else -(-7 // size)
    for rank, share in enumerate(ranks):
        expected = (rank + size * np.arange(rows)) % 7
        np.testing.assert_array_equal(share["y"][0], expected)
        np.testing.assert_array_equal(share["y"][1][0], 2 * expected)
        np.testing.assert_array_equal(share["x"], source["x"][expected])
        if remainder == "drop":
            assert share["x"].base is source["x"].base, "rows were copied"


def test_one_rank_gets_the_data_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in (tf.data.Dataset.range(3), np.arange(3), (np.arange(3), np.arange(3))):
        assert shares(monkeypatch, source, 1) == [source]


def test_process_set() -> None:
    class Pair:
        def size(self) -> int:
            return 2

        def rank(self) -> int:
            return 1

    pair: Any = Pair()
    assert data.shard(np.arange(4), process_set=pair).tolist() == [1, 3]


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        ([1, 2, 3], {}, TypeError, "must be a tf.data.Dataset, a NumPy array"),
        (np.array(3), {}, TypeError, "a NumPy array with rows"),
        ((np.arange(3), np.arange(4)), {}, ValueError, "same number of rows"),
        (np.arange(4), {"remainder": "keep"}, ValueError, '"drop" or "wrap"'),
        (np.arange(4), {"split_batches": True}, TypeError, "needs a tf.data.Dataset of batches"),
        (tf.data.Dataset.range(9), {"split_batches": True}, ValueError, "a dataset of batches"),
    ]
    for source, options, error, message in cases:
        with pytest.raises(error, match=message):
            shares(monkeypatch, source, 2, **options)
