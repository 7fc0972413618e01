"""Moving statistics: the same on all ranks for validation and for what a rank saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.keras import common

pytestmark = pytest.mark.usefixtures("initialized")

Exchange = Callable[[Any], list[Any]]


class Peek(keras.callbacks.Callback):
    """Keeps the statistics at the end of the last step, in validation and for what is saved."""

    def _keep(self, when: str) -> None:
        norm = self.model.get_layer("norm")
        variables = (norm.moving_mean, norm.moving_variance)
        seen = [keras.ops.convert_to_numpy(variable) for variable in variables]
        setattr(self, when, np.stack(seen).astype(np.float64))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._keep("trained")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._keep("validated")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._keep("saved")


@pytest.mark.parametrize("validates", [True, False])
def test_all_ranks_evaluate_and_save_the_same(
    validates: bool, rank: int, size: int, exchange: Exchange
) -> None:
    keras.utils.set_random_seed(3)
    frozen = keras.layers.Dense(6, trainable=False, name="frozen")
    model = keras.Sequential(
        [
            keras.Input((6,)),
            frozen,
            keras.layers.BatchNormalization(momentum=0.5, name="norm"),
            keras.layers.Dropout(0.5, name="dropout"),
            ringar.layers.SyncBatchNormalization(momentum=0.5, name="together"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    kernel = common.values(model)[0]
    x, y = common.regression(8, seed=rank)
    data = tf.data.Dataset.from_tensors((x + 3 * rank, y)).repeat(2)
    peek = Peek()
    model.fit(
        data,
        epochs=2,
        validation_data=data if validates else None,
        callbacks=[ringar.callbacks.Distributed(), peek],
        verbose=0,
    )
    means, variances = np.stack(exchange(peek.trained), axis=1)
    assert size == 1 or np.ptp(means, axis=0).max() > 0.1, "the ranks had the same statistics"
    # Ranks with as many examples each: the mean and the variance of all of them.
    expected = np.stack([means.mean(axis=0), variances.mean(axis=0) + means.var(axis=0)])
    np.testing.assert_allclose(peek.saved, expected, rtol=1e-5)
    if validates:
        np.testing.assert_array_equal(peek.validated, peek.saved)
    assert len({one.tobytes() for one in exchange(peek.saved)}) == 1
    # What is equal on all ranks stays as it is, and seeds stay each rank's own.
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(frozen.kernel), kernel)
    assert len(set(exchange(common.digest(model)))) == 1
    seed = keras.ops.convert_to_numpy(model.get_layer("dropout").seed_generator.state).tolist()
    assert len({str(one) for one in exchange(seed)}) == size


def test_statistics_of_a_cut_layer_stay_those_of_its_part(exchange: Exchange, size: int) -> None:
    grid = ringar.parallel.Grid(model=size if size % 2 else 2)
    own = keras.Variable(np.full(3, grid.part + grid.group / 2, np.float32), trainable=False)
    whole = keras.Variable(np.full(2, ringar.rank(), np.float32), trainable=False)

    class Holder(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.whole, self.built = own, whole, True

        def call(self, x: tf.Tensor) -> tf.Tensor:
            return x

    from ringar.keras import moving_statistics
    from ringar.sharding import cut

    cut.mark(own, cut.Cut(0, grid))
    moving_statistics.combine(keras.Sequential([Holder()]))
    mean_group = (grid.data - 1) / 4
    np.testing.assert_allclose(keras.ops.convert_to_numpy(own), grid.part + mean_group)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(whole), (size - 1) / 2)
    grid.close()
