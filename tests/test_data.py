"""ringar.data.shard: every rank its share of data of any kind."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
from typing import Any, NamedTuple

import keras
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import tensorflow as tf

import ringar
from ringar import data
from ringar.data import marks
from ringar.job import place
from ringar.job.process_sets import ProcessSet

pytestmark = pytest.mark.ranks(1)

REMAINDERS = ["drop", "wrap", "keep"]


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


def counts(rows: int, size: int, remainder: str) -> list[int]:
    """How many elements each rank gets."""
    if remainder == "keep":
        return [len(range(rank, rows, size)) for rank in range(size)]
    return [rows // size if remainder == "drop" else -(-rows // size)] * size


def hide_length(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same elements, whose number TensorFlow does not know."""
    return dataset.filter(lambda *_: True)


@pytest.mark.parametrize("has_length", [True, False])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [4, 5, 6, 7, 12])
def test_elements_are_dealt_in_turn(
    count: int, size: int, remainder: str, has_length: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = tf.data.Dataset.range(count)
    dataset = dataset if has_length else hide_length(dataset)
    ranks = shares(monkeypatch, dataset, size, remainder=remainder)
    got = [elements(rank) for rank in ranks]
    expected = counts(count, size, remainder)
    # Round after round, the ranks' elements are the dataset's in their order, and then its first.
    assert got == [[(r + size * i) % count for i in range(n)] for r, n in enumerate(expected)]
    if has_length:
        assert [int(rank.cardinality()) for rank in ranks] == expected


def test_fewer_elements_than_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = tf.data.Dataset.range(1)
    for source in (dataset, np.zeros(1)):
        with pytest.raises(ValueError, match="at least one element for each of 4 ranks"):
            shares(monkeypatch, source, 4, remainder="drop")
    for source in (dataset, hide_length(dataset)):
        got = [elements(rank) for rank in shares(monkeypatch, source, 4, remainder="wrap")]
        assert got == [[0]] * 4
    dropped = shares(monkeypatch, hide_length(dataset), 4, remainder="drop")
    assert [elements(rank) for rank in dropped] == [[]] * 4


def test_endless_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    for remainder in REMAINDERS:
        ranks = shares(monkeypatch, tf.data.Dataset.range(3).repeat(), 2, remainder=remainder)
        assert [elements(rank.take(3)) for rank in ranks] == [[0, 2, 1], [1, 0, 2]]
        assert all(int(rank.cardinality()) == tf.data.INFINITE_CARDINALITY for rank in ranks)


@pytest.mark.parametrize("has_length", [True, False])
def test_batches_are_dealt_whole_and_structures_kept(
    has_length: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = np.arange(10).reshape(5, 2), {"label": np.arange(5), "weight": np.ones(5)}
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
    dataset = dataset if has_length else hide_length(dataset)
    first, second = shares(monkeypatch, dataset, 2, remainder="drop")
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
    batches = elements(dataset.batch(2 * size))
    assert [sorted(itertools.chain(*parts)) for parts in zip(*ranks, strict=True)] == batches


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_split_batches_keeps_the_global_batch(
    drop_remainder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.arange(19)
    dataset = tf.data.Dataset.from_tensor_slices((x, x * 2)).batch(8, drop_remainder=drop_remainder)
    ranks = shares(monkeypatch, dataset, 4, remainder="drop", split_batches=True)
    for rank, share in enumerate(ranks):
        got = elements(share)
        # The last batch has three rows, too few for four ranks.
        parts = [[2 * rank, 2 * rank + 1], [2 * rank + 8, 2 * rank + 9]]
        assert got == [(rows, [2 * r for r in rows]) for rows in parts]
        assert share.element_spec[0].shape.as_list() == ([2] if drop_remainder else [None])
        assert int(share.cardinality()) == 2


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_global_batch_is_that_of_one_process(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With "keep" the last one, too: by elements, by rows, by batches, and by parts of batches."""
    rows, batch = 2 * 12 + 7, 12
    x = np.arange(rows)
    numbers = tf.data.Dataset.range(rows)
    dealt = shares(monkeypatch, numbers, size, remainder="keep")
    arrays = shares(monkeypatch, x, size, remainder="keep")
    kinds = {
        "elements": ([elements(d.batch(batch // size)) for d in dealt], batch),
        "rows": ([elements(in_batches(a, batch // size)) for a in arrays], batch),
        "batches": (
            [elements(d) for d in shares(monkeypatch, numbers.batch(2), size, remainder="keep")],
            2 * size,
        ),
        "parts": (
            [
                elements(d)
                for d in shares(
                    monkeypatch, numbers.batch(batch), size, remainder="keep", split_batches=True
                )
            ],
            batch,
        ),
    }
    for kind, (ranks, batch_rows) in kinds.items():
        steps = itertools.zip_longest(*ranks, fillvalue=[])
        got = [sorted(itertools.chain(*parts)) for parts in steps]
        assert got == elements(numbers.batch(batch_rows)), kind


def in_batches(array: np.ndarray, size: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(array).batch(size)


def test_split_batches_that_are_uneven(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = tf.data.Dataset.range(12).batch(10)
    ranks = shares(monkeypatch, dataset, 4, split_batches=True, remainder="keep")
    # Lengths differ by one at most, and the batch of two rows is skipped by those without a row.
    assert [elements(rank) for rank in ranks] == [
        [[0, 1, 2], [10]],
        [[3, 4]],
        [[5, 6, 7], [11]],
        [[8, 9]],
    ]


def test_known_numbers_of_batches_stay_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise Keras runs a step more than there are batches, in each epoch."""
    numbers = tf.data.Dataset.range(25)
    shuffled = numbers.shuffle(25, seed=1, reshuffle_each_iteration=False)
    cases: list[tuple[tf.data.Dataset, list[int]]] = [  # the last batch has one row for rank 0 only
        (numbers.batch(6), [5, 4, 4]),
        (numbers.batch(6, drop_remainder=True), [4, 4, 4]),
        (numbers.batch(6).map(lambda x: x * 2).prefetch(1), [5, 4, 4]),
        (shuffled.batch(6).take(5), [5, 4, 4]),
        (numbers.batch(6).take(3), [3, 3, 3]),
        (numbers.batch(6).skip(2), [3, 2, 2]),
        (numbers.take(24).batch(6).repeat(2), [8, 8, 8]),
        (numbers.repeat(2).batch(6), [9, 9, 8]),
        (numbers.take(6).batch(6).concatenate(numbers.batch(6)), [6, 5, 5]),
        (numbers.padded_batch(6, []), [5, 4, 4]),
        (shuffled.take(24).batch(6).shuffle(1), [4, 4, 4]),
        (numbers.take(24).batch(6).repeat(), [tf.data.INFINITE_CARDINALITY] * 3),
        (hide_length(numbers.batch(6)), [tf.data.UNKNOWN_CARDINALITY] * 3),
    ]
    for number, (dataset, expected) in enumerate(cases):
        ranks = shares(monkeypatch, dataset, 3, split_batches=True)
        assert [int(rank.cardinality()) for rank in ranks] == expected, number
        parts = [elements(rank.take(20)) for rank in ranks]
        steps = list(itertools.zip_longest(*parts, fillvalue=[]))
        assert [list(itertools.chain(*step)) for step in steps] == elements(dataset.take(20)), (
            number
        )
        if expected[0] >= 0:
            assert [len(part) for part in parts] == expected, number


def test_short_batches_in_the_middle_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank without a row would be a step ahead of the others from there on."""
    short = tf.data.Dataset.range(7).batch(3)
    with pytest.raises(ValueError, match=r"rank 0 .* at least 2 rows .* Received: 1 in batch 2"):
        shares(monkeypatch, short.repeat(2), 2, split_batches=True)
    with pytest.raises(ValueError, match="Received: 1 at most"):
        shares(monkeypatch, short.skip(2), 2, split_batches=True)
    # Their rows are seen when they come.
    single_rows = short.map(lambda x: x[:1])
    for dataset in (short.repeat(), hide_length(short.repeat(2)), single_rows.take(2)):
        for rank, share in enumerate(shares(monkeypatch, dataset, 2, split_batches=True)):
            with pytest.raises(tf.errors.InvalidArgumentError, match=rf"rank {rank} \| data.shard"):
                elements(share.take(4))


class Vector(tf.experimental.BatchableExtensionType):
    length: tf.Tensor
    angle: tf.Tensor


@pytest.mark.parametrize("has_length", [True, False])
def test_components_of_any_type_are_cut(has_length: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.eye(7)[:, :4]
    source: dict[str, Any] = {
        "sparse": tf.sparse.from_dense(rows),
        "ragged": tf.RaggedTensor.from_row_lengths(np.arange(21), np.arange(7)),
        "text": np.array(list("abcdefg")),
        "flags": rows > 0,
        "half": tf.cast(rows, tf.bfloat16),
        "complex": rows * 1j,
    }
    if has_length:
        source["vector"] = Vector(tf.range(7), tf.constant(rows))
    dataset = tf.data.Dataset.from_tensor_slices(source).batch(3).map(lambda x: (x, None))
    dataset = dataset if has_length else hide_length(dataset)
    ranks = shares(monkeypatch, dataset, 2, split_batches=True)
    assert ranks[0].element_spec == dataset.element_spec
    for share, rows_of_rank in zip(ranks, ([[0, 1], [3, 4], [6]], [[2], [5]]), strict=True):
        for (parts, nothing), at in zip(share, rows_of_rank, strict=True):
            assert nothing is None
            np.testing.assert_array_equal(tf.sparse.to_dense(parts["sparse"]), rows[at])
            assert parts["ragged"].to_list() == [source["ragged"].to_list()[row] for row in at]
            for name in ("text", "flags", "half", "complex"):
                expected = tf.gather(source[name], at)
                np.testing.assert_array_equal(parts[name], expected)
            if has_length:
                np.testing.assert_array_equal(parts["vector"].length, at)


class Pair(NamedTuple):
    first: Any
    second: Any


@pytest.mark.parametrize("has_length", [True, False])
def test_structure_of_an_element_is_kept(has_length: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(8)
    for structure in (x, (x,), (x, x), {"a": x}, Pair(x, x), ((x,), {"b": (x,)})):
        dataset = tf.data.Dataset.from_tensor_slices(structure)
        dataset = dataset if has_length else hide_length(dataset)
        (share, _), (part, _) = (
            shares(monkeypatch, dataset, 2),
            shares(monkeypatch, dataset.batch(4), 2, split_batches=True),
        )
        assert share.element_spec == dataset.element_spec
        tf.nest.assert_same_structure(elements(share)[0], structure, check_types=False)
        tf.nest.assert_same_structure(part.element_spec, structure, check_types=False)


def test_maps_run_after_sharding(monkeypatch: pytest.MonkeyPatch) -> None:
    """...where that gives the same: the graph then has the share below the map."""

    def pipeline(source: tf.data.Dataset, *, batched: bool) -> tf.data.Dataset:
        mapped = source.map(lambda x: (x * 3, x)).cache().prefetch(2)
        if batched:
            mapped = mapped.batch(4).map(lambda x, y: (x, y), num_parallel_calls=2)
        return mapped.prefetch(tf.data.AUTOTUNE)

    noisy = tf.random.Generator.from_seed(1)
    numbers = tf.data.Dataset.range(23)
    for remainder, has_length, batched in itertools.product(
        REMAINDERS, [True, False], [True, False]
    ):
        source = numbers if has_length else hide_length(numbers)
        rows = elements(pipeline(source, batched=batched))
        ranks = shares(monkeypatch, pipeline(source, batched=batched), 3, remainder=remainder)
        for rank, share in enumerate(ranks):
            count = counts(len(rows), 3, remainder)[rank]
            assert elements(share) == [rows[(rank + 3 * i) % len(rows)] for i in range(count)]
            if has_length:
                assert int(share.cardinality()) == count
        early = not batched or remainder == "keep" or (has_length and remainder == "drop")
        case = (remainder, has_length, batched)
        assert [first_is_map(share) for share in ranks] == [early] * 3, case
    # A map stays where it is if it is no function of its element alone, or below a shuffle.
    for dataset in (
        numbers.map(lambda x: (x, noisy.normal(()))),
        numbers.map(lambda x: x).shuffle(9, seed=1),
    ):
        assert not first_is_map(shares(monkeypatch, dataset, 2)[1])


def first_is_map(dataset: tf.data.Dataset) -> bool:
    """Whether the share's last map lies above its choice of elements."""
    names: list[str] = []
    while dataset is not None:
        names.append(type(dataset).__name__.removeprefix("_"))
        dataset = next(iter(dataset._inputs()), None)
    choices = [i for i, n in enumerate(names) if n in ("ShardDataset", "FlatMapDataset")]
    choices += [i for i, n in enumerate(names[:-1]) if n == "FilterDataset"][:1]
    maps = [i for i, n in enumerate(names) if n in ("MapDataset", "ParallelMapDataset")]
    return bool(maps) and min(maps) < min(choices)


def test_shuffle_without_a_seed_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tf.random.set_seed(None)
    numbers = tf.data.Dataset.range(8)
    with caplog.at_level(logging.WARNING, "ringar"):
        shares(monkeypatch, numbers.shuffle(8, seed=0).batch(2), 2)
        tf.random.set_seed(3)
        shares(monkeypatch, numbers.shuffle(8), 2)
        tf.random.set_seed(None)
        assert not caplog.records
        shares(monkeypatch, numbers.shuffle(8).batch(2).prefetch(1), 2)
    assert "shuffled without a seed" in caplog.text


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_arrays(size: int, remainder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    column = np.arange(7)
    source: dict[str, Any] = {"x": np.arange(14).reshape(7, 2), "y": [column, (column * 2,)]}
    ranks = shares(monkeypatch, source, size, remainder=remainder)
    for rank, (share, rows) in enumerate(zip(ranks, counts(7, size, remainder), strict=True)):
        expected = (rank + size * np.arange(rows)) % 7
        np.testing.assert_array_equal(share["y"][0], expected)
        np.testing.assert_array_equal(share["y"][1][0], 2 * expected)
        np.testing.assert_array_equal(share["x"], source["x"][expected])
        if remainder != "wrap":
            assert share["x"].base is source["x"].base, "rows were copied"


@pytest.mark.parametrize("remainder", REMAINDERS)
def test_tensors_and_tables(remainder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(14).reshape(7, 2)
    table = pd.DataFrame(x, index=list("abcdefg"), columns=["u", "v"])
    ragged = tf.RaggedTensor.from_row_lengths(np.arange(21), np.arange(7))
    sparse = tf.sparse.from_dense(x * (x % 3 > 0))
    matrix = scipy.sparse.coo_matrix(x)
    tables = {"table": table, "column": table["v"]}
    source = (tf.constant(x), tables, ragged, None, x, sparse, matrix)
    for rank, share in enumerate(shares(monkeypatch, source, 3, remainder=remainder)):
        rows = (rank + 3 * np.arange(counts(7, 3, remainder)[rank])) % 7
        tensor, tables, lists, nothing, array, entries, rows_of_matrix = share
        assert isinstance(tensor, tf.Tensor)
        np.testing.assert_array_equal(tensor, x[rows])
        pd.testing.assert_frame_equal(tables["table"], table.iloc[rows])
        pd.testing.assert_series_equal(tables["column"], table["v"].iloc[rows])
        assert lists.to_list() == [ragged.to_list()[row] for row in rows]
        assert nothing is None
        np.testing.assert_array_equal(array, x[rows])
        np.testing.assert_array_equal(tf.sparse.to_dense(entries), (x * (x % 3 > 0))[rows])
        np.testing.assert_array_equal(rows_of_matrix.toarray(), x[rows])


def test_arrays_need_no_other_library() -> None:
    program = """
import sys
import numpy as np
from ringar.job import place
from ringar.job.process_sets import ProcessSet
place.rank, place.size = (lambda: 1), (lambda: 2)
from ringar import data
from ringar.data import marks
assert data.shard({"x": np.arange(5)}, remainder="keep")["x"].tolist() == [1, 3]
assert not {"tensorflow", "keras", "pandas"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


class Squares(keras.utils.PyDataset):
    """`rows` rows in batches of 4, in another order in every epoch; endless without `rows`."""

    def __init__(self, rows: int | None, **options: Any) -> None:
        super().__init__(**options)
        self.rows, self.epochs = rows, 0

    @property
    def num_batches(self) -> int | None:
        return None if self.rows is None else -(-self.rows // 4)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = np.arange(4 * index, 4 * index + 4)
        if self.rows is not None:
            numbers = (numbers[numbers < self.rows] + 5 * self.epochs) % self.rows
        return numbers[:, None], numbers[:, None] ** 2

    def on_epoch_end(self) -> None:
        self.epochs += 1


def rows_in(dataset: Any) -> list[list[int]]:
    assert all((y == x**2).all() for x, y in dataset)
    return [x[:, 0].tolist() for x, _ in dataset]


@pytest.mark.parametrize("remainder", REMAINDERS)
def test_py_dataset(remainder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Squares(18, workers=2, max_queue_size=3)
    expected = rows_in(source)
    ranks = shares(monkeypatch, source, 2, remainder=remainder)
    for rank, share in enumerate(ranks):
        count = counts(5, 2, remainder)[rank]
        assert (len(share), share.num_batches) == (count, count)
        assert rows_in(share) == [expected[(rank + 2 * i) % 5] for i in range(count)]
        assert (share.workers, share.max_queue_size) == (2, 3)
    source.on_epoch_end()
    assert rows_in(ranks[1])[0] == rows_in(source)[1] == [9, 10, 11, 12]
    ranks[0].on_epoch_end()
    assert source.epochs == 2


def test_parts_of_a_py_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(rows: int, remainder: str) -> list[list[list[int]]]:
        options = {"remainder": remainder, "split_batches": True}
        return [rows_in(share) for share in shares(monkeypatch, Squares(rows), 3, **options)]

    assert parts(9, "keep") == [[[0, 1], [4, 5], [8]], [[2], [6]], [[3], [7]]]
    assert parts(9, "drop") == [[[0], [4]], [[1], [5]], [[2], [6]]]
    assert parts(7, "keep") == [[[0, 1], [4]], [[2], [5]], [[3], [6]]]
    first = shares(monkeypatch, Squares(None), 5, remainder="drop", split_batches=True)[0]
    with pytest.raises(ValueError, match="at least 5 rows.*batch 0, which has 4"):
        first[0]


def test_endless_py_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    for remainder in REMAINDERS:
        _, second = shares(monkeypatch, Squares(None), 2, remainder=remainder)
        assert second.num_batches is None
        assert [x[0, 0] for x, _ in itertools.islice(second, 3)] == [4, 12, 20]


@pytest.mark.parametrize("multiprocessing", [False, True])
def test_workers_of_a_py_dataset(multiprocessing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Squares(24, workers=2, use_multiprocessing=multiprocessing)
    _, second = shares(monkeypatch, source, 2)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Rescaling(1.0)])
    predicted = model.predict(second, verbose=0)
    np.testing.assert_array_equal(predicted[:, 0], [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23])


@pytest.mark.usefixtures("initialized")
def test_evaluating_a_part_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.arange(8.0)[:, None]
    rows = tf.data.Dataset.from_tensor_slices((x, x))
    kinds: dict[str, tuple[Any, Any]] = {  # the data, and a part of them
        "dataset": (rows.batch(4), shares(monkeypatch, rows, 2)[0].batch(2).map(lambda *a: a)),
        "parts": (
            rows.batch(4),
            shares(monkeypatch, rows.batch(4), 2, split_batches=True)[0].prefetch(1),
        ),
        "PyDataset": (Squares(8), shares(monkeypatch, Squares(8), 2)[0]),
        "array": (x, shares(monkeypatch, x, 2)[0]),
        "tensors": ({"x": tf.constant(x)}, shares(monkeypatch, {"x": tf.constant(x)}, 2)[0]),
    }
    monkeypatch.undo()
    for kind, (everything, part) in kinds.items():
        assert marks.is_part(part), kind
        assert not marks.is_part(everything), kind
    x, part = kinds["array"]
    monkeypatch.setattr(marks, "_warned_methods", set())

    def warnings() -> list[str]:
        return [record.message for record in caplog.records if record.name.startswith("ringar")]

    with caplog.at_level(logging.WARNING, "ringar"):
        model.evaluate(x, x, verbose=0)
        model.evaluate(part, part, verbose=0, callbacks=[ringar.callbacks.Distributed()])
        model.fit(part, part, verbose=0, validation_data=kinds["dataset"][1])
        assert not warnings()
        for data in (kinds["dataset"][1], kinds["PyDataset"][1]):
            model.evaluate(data, verbose=0)
        assert len(warnings()) == 1
        assert "callbacks=[ringar.callbacks.Distributed()]" in caplog.text
        model.predict(part, verbose=0)
        model.predict(part, verbose=0)
    assert len(warnings()) == 2
    assert "ringar.predict(model, data)" in caplog.text


def test_one_rank_gets_the_data_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in (tf.data.Dataset.range(3), np.arange(3), (np.arange(3), np.arange(3))):
        assert shares(monkeypatch, source, 1) == [source]


def test_process_set(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = ProcessSet([2, 5])
    monkeypatch.setattr(place, "rank", lambda: 5)
    assert data.shard(np.arange(4), process_set=pair).tolist() == [1, 3]
    monkeypatch.setattr(place, "rank", lambda: 4)
    with pytest.raises(ValueError, match=r"members only\. Received: ProcessSet\(ranks=\[2, 5\]"):
        data.shard(np.arange(4), process_set=pair)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = "needs a tf.data.Dataset or a keras.utils.PyDataset of batches"
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        ([1, 2, 3], {}, TypeError, "must be a tf.data.Dataset, a keras.utils.PyDataset"),
        (np.array(3), {}, TypeError, "with rows"),
        ((None, ()), {}, TypeError, "no array"),
        ((np.arange(3), tf.range(4)), {}, ValueError, "same number of rows"),
        (np.arange(4), {"remainder": "pad"}, ValueError, '"drop", "wrap", "keep"'),
        (np.arange(4), {"split_batches": True}, TypeError, batches),
        (tf.data.Dataset.range(9), {"split_batches": True}, ValueError, "a dataset of batches"),
        (Squares(4), {}, ValueError, "at least one element for each of 2 ranks"),
        (tf.data.Dataset.range(9).window(3), {"split_batches": True}, TypeError, "DatasetSpec"),
    ]
    wrapped = {"split_batches": True, "remainder": "wrap"}
    cases.append((tf.data.Dataset.range(9).batch(3), wrapped, ValueError, '"drop" or "keep"'))
    for source, options, error, message in cases:
        with pytest.raises(error, match=message):
            shares(monkeypatch, source, 2, **options)
