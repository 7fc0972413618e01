"""Epochs begin at once: Keras' pipelines are not tuned, nobody waits for the end of others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from ringar import hooks
from tests.plugin import run_job

pytestmark = pytest.mark.ranks(1)

ROWS = np.arange(6.0, dtype=np.float32).reshape(3, 2)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> np.ndarray:
        return ROWS[index : index + 1]


@pytest.mark.parametrize(
    "adapter",
    [
        lambda: ArrayDataAdapter(ROWS, batch_size=1),
        lambda: GeneratorDataAdapter((ROWS[i : i + 1],) for i in range(3)),
        lambda: PyDatasetAdapter(Batches()),
    ],
    ids=["array", "generator", "PyDataset"],
)
def test_pipelines_of_keras_are_not_tuned(adapter: Any) -> None:
    hooks.install("distributed training")
    dataset = adapter().get_tf_dataset()
    assert dataset.options().autotune.enabled is False
    batches = [np.asarray(batch[0] if isinstance(batch, tuple) else batch) for batch in dataset]
    np.testing.assert_array_equal(np.concatenate(batches), ROWS)


def test_pipelines_of_users_stay_as_they_are() -> None:
    hooks.install("distributed training")
    dataset = TFDatasetAdapter(tf.data.Dataset.from_tensor_slices(ROWS)).get_tf_dataset()
    assert dataset.options().autotune.enabled is None


def run(method: str, data: tf.data.Dataset) -> None:
    """Takes two steps, which are not all that there are."""
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    number = {"steps_per_epoch": 2} if method == "fit" else {"steps": 2}
    getattr(model, method)(data.prefetch(tf.data.AUTOTUNE), verbose=0, **number)


METHODS = pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])


@METHODS
def test_nobody_waits_for_the_end_of_an_iterator(method: str) -> None:
    hooks.install("distributed training")
    may_end = threading.Event()

    def wait(number: np.ndarray) -> np.ndarray:
        if number >= 2:
            may_end.wait(10)
        return number

    def example(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        tf.numpy_function(wait, [number], tf.int64)
        return tf.constant(ROWS), tf.constant(ROWS[:, :1])

    data = tf.data.Dataset.range(100).map(example, num_parallel_calls=2).cache()
    start = time.monotonic()
    run(method, data)
    seconds = time.monotonic() - start
    may_end.set()
    assert seconds < 10


@METHODS
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_generator_is_closed_at_once(method: str, is_inside: bool) -> None:
    hooks.install("distributed training")
    closed = []

    def generate() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        try:
            while True:
                yield ROWS, ROWS[:, :1]
        finally:
            closed.append(method)

    specs = tf.TensorSpec([3, 2]), tf.TensorSpec([3, 1])

    def data(_: object = None) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(generate, output_signature=specs)

    run(method, tf.data.Dataset.range(1).interleave(data) if is_inside else data())
    assert closed == [method]


@METHODS
def test_a_file_of_a_cache_is_left_to_the_next_iterator(method: str, tmp_path: Path) -> None:
    hooks.install("distributed training")
    rows = tf.data.Dataset.from_tensors((ROWS, ROWS[:, :1])).repeat(200)
    data = rows.cache(str(tmp_path / "rows")).map(lambda x, y: (x + 1, y))
    for _ in range(3):
        run(method, data)


EPOCHS = """
import keras
import numpy as np

import ringar

ringar.init()
x, y = np.ones([64, 2], np.float32), np.ones([64, 1], np.float32)
model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
made = []
from tensorflow.python.data.ops import dataset_ops

iterate = dataset_ops.DatasetV2.__iter__


def noting(dataset):
    made.append(dataset.options().autotune.enabled)
    return iterate(dataset)


dataset_ops.DatasetV2.__iter__ = noting
model.fit(x, y, batch_size=8, epochs=3, validation_data=(x, y), verbose=0)
model.evaluate(x, y, verbose=0)
model.predict(x, verbose=0)
assert len(made) >= 8 and not any(made), made
assert None not in made, made
"""


@pytest.mark.job
@pytest.mark.deadline(120)
def test_no_iterator_of_fit_is_tuned() -> None:
    run_job(1, EPOCHS).check()
