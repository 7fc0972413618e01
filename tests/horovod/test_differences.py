"""What differs from Horovod: rows of docs/migrate-from-horovod.md that no other file tests."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar.horovod.tensorflow as hvd_tf
import ringar.horovod.tensorflow.keras as hvd

pytestmark = pytest.mark.usefixtures("initialized")


def test_averages_weigh_batches() -> None:
    """In `fit`, where Horovod averages a batch of one row like one of many."""
    rows = hvd.rank() + 1
    x = np.full((rows, 1), 1.0 + hvd.rank(), np.float32)
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)), "mse")
    model.fit(x, x, batch_size=rows, verbose=0)
    values = np.concatenate([np.full(rank + 1, 1.0 + rank) for rank in range(hvd.size())])
    np.testing.assert_allclose(model.get_weights()[0], [[np.mean(values**2)]], rtol=1e-5)


def test_the_object_itself() -> None:
    optimizer = keras.optimizers.SGD(0.1)
    assert hvd.DistributedOptimizer(optimizer) is optimizer
    with pytest.raises(ValueError, match="must not be distributed already"):
        hvd.DistributedOptimizer(optimizer)


def test_equal_rows_are_added() -> None:
    """Before the optimizer sees them, so that Adam does not add their squares."""
    table = keras.Variable(np.zeros((3, 1), np.float32))
    gradient = tf.IndexedSlices(tf.ones([2, 1]), tf.constant([1, 1]), tf.constant([3, 1]))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1, beta_2=0.5))
    optimizer.apply([gradient], [table])
    assert float(optimizer.variables[3][1, 0]) == pytest.approx(0.5 * 2**2)


def test_sums_of_float16_are_rounded_once() -> None:
    # 2048 + 1 + 1 + 1 in float16 would stay 2048 if each sum were rounded.
    term = 2048.0 if hvd.rank() == 0 else 1.0
    total = hvd_tf.allreduce(tf.constant([term]), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert float(total[0]) == float(np.float16(2048.0 + hvd.size() - 1))


def test_names_of_layers() -> None:
    first, second = hvd_tf.SyncBatchNormalization(), hvd_tf.SyncBatchNormalization()
    model = keras.Sequential([keras.Input((2,)), first, second])
    assert first.name != second.name
    assert len(model.layers) == 2


@pytest.mark.ranks(2, 3, 4)
def test_errors_of_ranks_that_disagree() -> None:
    """InvalidArgumentError, where Horovod has FailedPreconditionError; ranks can go on."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1"):
        hvd_tf.allreduce(tf.ones(2 + hvd.rank()), name="different")
    np.testing.assert_array_equal(hvd_tf.allreduce(tf.ones(2)), [1, 1])
