"""Ranks that are given equal data are told so, and the check takes no batch from the training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests import one_process
from tests.keras import common

pytestmark = pytest.mark.usefixtures("initialized")

Exchange = Callable[[Any], list[Any]]
KINDS = ["dataset", "arrays", "py_dataset", "generator"]


class Batches(keras.utils.PyDataset):
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__(workers=2)
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x) // 4

    def __getitem__(self, index: int) -> Any:
        rows = slice(4 * index, 4 * index + 4)
        return self.x[rows], self.y[rows]


def arguments(kind: str, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    def generator() -> Iterator[Any]:
        while True:
            yield from (Batches(x, y)[i] for i in range(5))

    if kind == "arrays":
        return {"x": x, "y": y, "batch_size": 4, "shuffle": False}
    if kind == "generator":
        return {"x": generator(), "steps_per_epoch": 5}
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    return {"x": dataset if kind == "dataset" else Batches(x, y), "shuffle": False}


class Seen(keras.layers.Layer):
    """Adds up what it is given, and counts how often it is traced."""

    traced = 0

    def build(self, input_shape: Any) -> None:
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        Seen.traced += 1
        self.total.assign_add(tf.reduce_sum(x))
        return x


def fit(callback: Any, data: dict[str, Any], **options: Any) -> tuple[float, int]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), Seen(), keras.layers.Dense(1)])
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", **options)
    before = Seen.traced
    # `total` is of this rank alone until the end of the epoch.
    totals: list[float] = []
    epoch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: totals.append(common.number(model.layers[0].total))
    )
    model.fit(**data, epochs=1, verbose=0, callbacks=[epoch, *callback])
    return totals[-1], Seen.traced - before


def warnings_of_ringar(caplog: pytest.LogCaptureFixture) -> str:
    """Return them without those of TensorFlow, which counts the traces of all tests."""
    return "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("ringar"))


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_with_equal_data_are_told(
    kind: str, rank: int, size: int, exchange: Exchange, caplog: pytest.LogCaptureFixture
) -> None:
    x, y = common.regression(20)
    with caplog.at_level(logging.WARNING, "ringar"):
        fit([ringar.callbacks.Distributed(combine="own")], arguments(kind, x + rank, y))
        assert not exchange(warnings_of_ringar(caplog))[0]
        callback = ringar.callbacks.Distributed(combine="own")
        data = arguments(kind, x + (size > 2 and rank == size - 1), y)
        for _ in range(2):
            fit([callback], data)
    texts = exchange(warnings_of_ringar(caplog))
    assert texts[0].count("ringar.data.shard") == (size > 1), "told once"
    equal = ", ".join(str(rank) for rank in range(max(2, size - 1)))
    assert size == 1 or f"is the same on ranks {equal}: " in texts[0]
    assert not any(texts[1:])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in KINDS),
        ("dataset", {"jit_compile": True}),
        ("dataset", {"run_eagerly": True}),
        ("dataset", {"steps_per_execution": 2}),
        ("generator", {"steps_per_execution": 5}),
    ],
)
def test_training_sees_each_batch_once(kind: str, options: dict[str, Any], size: int) -> None:
    """The check traces nothing again, loses no batch and adds none."""
    x, y = common.regression(20)
    x += ringar.rank()
    # The first compiled step of a process is traced twice, with the check and without.
    fit([], arguments(kind, x, y), **options)
    total, traced = fit(
        [ringar.callbacks.Distributed(combine="own")], arguments(kind, x, y), **options
    )
    assert total == pytest.approx(x.sum(), rel=1e-4)
    assert traced == (5 if options.get("run_eagerly") else 1)


def test_passes_of_different_lengths_are_told(
    size: int, exchange: Exchange, caplog: pytest.LogCaptureFixture
) -> None:
    """Ranks with unequal shares that repeat them get out of step after the first pass."""
    rows = tf.data.Dataset.from_tensor_slices(common.regression(4 * size + 1))
    shard = ringar.data.shard
    shares = [shard(rows.repeat()).batch(4), shard(rows).batch(4).repeat()]
    with caplog.at_level(logging.WARNING, "ringar"):
        for share in shares:
            assert "after different numbers" not in caplog.text
            model = common.dense_model()
            model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
            callback = ringar.callbacks.Distributed()
            model.fit(share, steps_per_epoch=3, verbose=0, callbacks=[callback])
    counts = ", ".join(f"{1 + (rank == 0)} (rank {rank})" for rank in range(size))
    expected = f"different numbers of elements: {counts}."
    assert [expected in text for text in exchange(caplog.text)] == [size > 1] + [False] * (size - 1)


class Summary(keras.Model):
    """Maps inputs of many types to one number each."""

    def __init__(self) -> None:
        super().__init__()
        self.lookup = keras.layers.StringLookup(vocabulary=["red", "green"])
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 6))
        self.built = True

    def call(self, x: dict[str, Any]) -> Any:
        numbers = [
            self.lookup(x["text"]),
            x["flags"],
            x["half"],
            tf.abs(x["complex"]),
            tf.sparse.to_dense(x["sparse"])[:, 0],
            tf.reduce_sum(x["ragged"], axis=1),
        ]
        return self.dense(tf.stack([tf.cast(part, tf.float32) for part in numbers], axis=1))


def test_inputs_of_any_type(
    rank: int, size: int, exchange: Exchange, caplog: pytest.LogCaptureFixture
) -> None:
    """Shares train as one process on all of it, and equal data are told."""
    rng = np.random.default_rng(0)
    rows = 4 * size
    numbers = rng.normal(size=(2 * rows, 2)).astype(np.float32)
    inputs = {
        "text": np.where(numbers[:, 0] > 0, "red", "green"),
        "flags": numbers[:, 1] > 0,
        "half": tf.cast(numbers[:, 0], tf.bfloat16),
        "complex": numbers[:, 0] * 1j,
        "sparse": tf.sparse.from_dense(np.maximum(numbers, 0)),
        "ragged": tf.RaggedTensor.from_row_lengths(rng.normal(size=3 * rows), [1, 2] * rows),
    }
    nothing = {"nothing": tf.experimental.Optional.empty(tf.TensorSpec([], tf.float32))}
    data = tf.data.Dataset.from_tensor_slices((inputs, numbers[:, :1])).batch(rows)
    data = data.map(lambda x, y: ({**x, **nothing}, y))

    def train(data: tf.data.Dataset, optimizer: Any, callbacks: Any) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        model = Summary()
        model.compile(optimizer, "mse")
        model.fit(data, verbose=0, callbacks=callbacks)
        return common.values(model.dense)

    def on_ranks(data: tf.data.Dataset) -> list[np.ndarray]:
        optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(0.1))
        return train(data, optimizer, [ringar.callbacks.Distributed()])

    expected = one_process.compute(lambda: train(data, keras.optimizers.SGD(0.1), []))
    with caplog.at_level(logging.WARNING, "ringar"):
        received = on_ranks(ringar.data.shard(data, split_batches=True))
        assert common.largest_difference(received, expected) < 1e-5
        assert not any("first batch" in text for text in caplog.messages)
        on_ranks(data)
    warnings = exchange(any("first batch is the same" in text for text in caplog.messages))
    assert warnings == [size > 1] + [False] * (size - 1)
