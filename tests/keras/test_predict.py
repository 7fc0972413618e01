"""ringar.predict: all predictions in the order of the data, however it is shared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.keras import common

pytestmark = pytest.mark.usefixtures("initialized")

ROWS = 23


@pytest.fixture(scope="module")
def model() -> keras.Model:
    """Two inputs, and a dictionary of two outputs, one of them of integers."""
    keras.utils.set_random_seed(3)
    a, b = keras.Input((6,), name="a"), keras.Input((4,), dtype="int32", name="b")
    total = keras.layers.Dense(3)(keras.layers.Concatenate()([a, keras.ops.cast(b, "float32")]))
    largest = keras.ops.argmax(total, axis=-1)
    return keras.Model({"a": a, "b": b}, {"total": total, "choice": largest})


def inputs(rows: int = ROWS) -> dict[str, np.ndarray]:
    return {"a": common.regression(rows)[0], "b": common.tokens(rows)[0]}


def batches(rows: int = ROWS) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((inputs(rows), np.zeros(rows))).batch(2)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return ({key: array[3 * index : 3 * index + 3] for key, array in inputs().items()},)


def assert_same(received: Any, expected: Any) -> None:
    tf.nest.assert_same_structure(received, expected)
    for result, answer in zip(tf.nest.flatten(received), tf.nest.flatten(expected), strict=True):
        assert result.dtype == answer.dtype
        np.testing.assert_allclose(result, answer, rtol=1e-6, atol=1e-6)


@pytest.fixture(params=[1, 3], ids=["one batch a step", "three batches a step"])
def steps(request: pytest.FixtureRequest, model: keras.Model) -> Iterator[int]:
    model.compile(steps_per_execution=request.param)
    yield request.param
    model.compile()


def test_kinds_of_data(steps: int, model: keras.Model, size: int, rank: int) -> None:
    expected = model.predict(inputs(), verbose=0)
    kinds = {
        "arrays": inputs(),
        "tensors": tf.nest.map_structure(tf.constant, inputs()),
        "dataset": batches(),
        "dataset of unknown length": batches().filter(lambda *_: True),
        "PyDataset": Batches(),
    }
    for kind, data in kinds.items():
        print(kind)
        assert_same(ringar.predict(model, data, batch_size=4), expected)
    uncounted_batches = kinds["dataset of unknown length"]
    for data in (inputs(), uncounted_batches):
        received = ringar.predict(model, data, root_rank=size - 1)
        if rank == size - 1:
            assert_same(received, expected)
        else:
            assert received is None


@pytest.mark.parametrize("rows", [1, 3])
def test_fewer_rows_than_ranks(rows: int, model: keras.Model) -> None:
    expected = model.predict(inputs(rows), verbose=0)
    assert_same(ringar.predict(model, inputs(rows)), expected)
    assert_same(ringar.predict(model, batches(rows)), expected)
    assert_same(ringar.predict(model, batches(rows).filter(lambda *_: True)), expected)


def test_data_that_do_not_fit(model: keras.Model, rank: int, size: int) -> None:
    for empty in (inputs(0), batches(0), batches().filter(lambda *_: False)):
        with pytest.raises(ValueError, match="expected data with at least one row; received none"):
            ringar.predict(model, empty)
    with pytest.raises(TypeError, match="`data` must be an array.*Received: list_iterator"):
        ringar.predict(model, iter([]))
    with pytest.raises(ValueError, match=r"must end.*infinite"):
        ringar.predict(model, batches().repeat())
    with pytest.raises(ValueError, match=r"`root_rank` must be one of the ranks"):
        ringar.predict(model, inputs(), root_rank=size)
    if size > 1:
        surplus = 12 * (rank == 1)
        with pytest.raises(ValueError, match=r"same length .* 23 rows \(rank 0\), 35 rows"):
            ringar.predict(model, inputs(ROWS + surplus))
        with pytest.raises(ValueError, match=r"same length .*batches of its share \(rank 1"):
            ringar.predict(model, batches(ROWS + 8 * surplus).filter(lambda *_: True))


class Repeated(keras.Sequential):
    """Predicts sequences as long as the first number of the batch."""

    def predict_step(self, data: Any) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return tf.tile(x[:, None, :], [1, tf.cast(x[0, 0], tf.int32), 1])


def test_rows_that_differ_in_shape() -> None:
    model = Repeated([keras.Input((2,)), keras.layers.Identity()])
    model.compile()
    for lengths in ([2, 3, 1, 4, 2], [2, 2, 3], [3]):
        rows = np.repeat(np.array(lengths, np.float32), 2)[:-1]
        data = tf.data.Dataset.from_tensor_slices(np.stack([rows, np.arange(rows.size)], 1))
        data = data.map(lambda row: tf.cast(row, tf.float32)).batch(2)
        expected = model.predict(data, verbose=0)
        for kind in (data, data.filter(lambda _: True)):
            received = ringar.predict(model, kind)
            assert type(received) is type(expected)
            if isinstance(expected, tf.RaggedTensor):
                received, expected_rows = received.to_list(), expected.to_list()
            else:
                received, expected_rows = received.tolist(), expected.tolist()
            assert received == expected_rows


def test_rank_that_raises(model: keras.Model, rank: int, size: int) -> None:
    class Broken(Batches):
        def __getitem__(self, index: int) -> Any:
            if index == 7:  # of the last rank
                raise OSError("no such batch")
            return super().__getitem__(index)

    # Keras reads a PyDataset through tf.data, except its first batch; tf.data has its own error.
    causes = (OSError, tf.errors.UnknownError)
    error = causes if rank == size - 1 else ringar.errors.RankError
    with pytest.raises(error, match="no such batch"):
        ringar.predict(model, Broken())
    with pytest.raises(
        TypeError if rank == 0 else ringar.errors.RankError, match="`data` must be an array"
    ):
        ringar.predict(model, iter([]) if rank == 0 else inputs())


@pytest.mark.ranks(2, 4)
def test_model_that_a_grid_cuts(rank: int, size: int) -> None:
    """The ranks of a model group predict the same share together."""
    grid = ringar.parallel.Grid(model=2)
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            ringar.layers.SplitDense(4, reads="whole", grid=grid),
            ringar.layers.Gather(grid=grid),
        ]
    )
    x = common.regression(7)[0]
    expected = model(x).numpy()
    np.testing.assert_allclose(ringar.predict(model, x, batch_size=2), expected, rtol=1e-6)
    received = ringar.predict(model, x, root_rank=size - 1)
    assert (received is None) == (rank != size - 1)
    grid.close()
