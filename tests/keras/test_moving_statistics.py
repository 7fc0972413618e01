"""Moving statistics: the same on all ranks for validation and for what a rank saves."""

from __future__ import annotations

import inspect
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
        values = [keras.ops.convert_to_numpy(variable) for variable in variables]
        setattr(self, when, np.stack(values).astype(np.float64))

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
    assert len({state.tobytes() for state in exchange(peek.saved)}) == 1
    # What is equal on all ranks stays as it is, and seeds stay each rank's own.
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(frozen.kernel), kernel)
    assert len(set(exchange(common.digest(model)))) == 1
    seed = keras.ops.convert_to_numpy(model.get_layer("dropout").seed_generator.state).tolist()
    assert len({str(state) for state in exchange(seed)}) == size


class Memory(keras.layers.Layer):
    """Keeps what batches leave: a queue of unit vectors, counts of rows and steps, an average."""

    def build(self, input_shape: Any) -> None:
        def weight(name: str, *shape: int, dtype: str = "float32") -> Any:
            return self.add_weight(
                name=name, shape=shape, dtype=dtype, initializer="zeros", trainable=False
            )

        self.queue = weight("queue", 7, input_shape[-1])
        self.rows = weight("rows", dtype="int32")
        self.steps = weight("steps", dtype="int32")
        self.least = weight("least")
        self.average = weight("average")

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        if training:
            newest = tf.math.l2_normalize(x, axis=1)[:2]
            self.queue.assign(tf.concat([newest, self.queue.value[:-2]], 0))
            self.rows.assign_add(tf.shape(x)[0])
            self.steps.assign_add(1)
            self.least.assign(tf.reduce_min(x))
            self.average.assign(0.5 * self.average.value + 0.5 * tf.reduce_mean(x))
        return x


RULES = {
    "memory/queue": "concatenate",
    "*/rows": "sum",
    "memory/least": "own",
    "*/average": "mean",
}


@pytest.mark.ranks(2, 3)
def test_weights_that_no_gradient_changes_follow_their_rules(
    rank: int, size: int, exchange: Exchange
) -> None:
    norm = keras.layers.BatchNormalization(momentum=0.5, name="norm")
    memory = Memory(name="memory")
    layers = [keras.Input((6,)), memory, norm, keras.layers.Dense(1)]
    model = keras.Sequential(layers, name="sequential")
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    x, y = common.regression(8, seed=rank)
    data = tf.data.Dataset.from_tensors((x + rank, y)).repeat(3 if rank == 0 else 2)

    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.values = {w.name: np.array(w) for w in model.non_trainable_weights}

    def fit(epochs: int = 1, **options: Any) -> list[dict[str, Any]]:
        ends = Ends()
        callbacks = [ringar.callbacks.Distributed(**options), ends]
        model.fit(data, epochs=epochs, callbacks=callbacks, verbose=0)
        return exchange(ends.values)

    with pytest.raises(ringar.errors.MismatchError) as error:
        fit()
    assert "memory/queue, sequential/memory/least, sequential/memory/average. " in str(error.value)
    assert exchange(str(error.value).split(" | ")[0]) == [f"rank {r}" for r in range(size)]
    with pytest.raises(ValueError, match=r"memory/rows.*Received: 'nothing'"):
        fit(combine={"nothing": "mean"})
    with pytest.raises(ValueError, match="must be one of 'mean'"):
        ringar.callbacks.Distributed(combine="median")
    with pytest.raises(ringar.errors.MismatchError, match="same `combine` on every rank"):
        fit(combine={**RULES, "*/average": "mean" if rank else "first"})

    for weight in memory.weights:
        weight.assign(tf.zeros_like(weight))
    of_ranks = fit(epochs=2, combine=RULES)
    assert memory.rows.numpy() == 8 * 2 * (1 + 2 * size), "counted twice, or not at all"
    assert memory.steps.numpy() == 6, "one process takes as many steps as the longest rank"
    entries = np.array_split(np.arange(7), size)
    queue = np.concatenate([of_ranks[r]["queue"][entries[r]] for r in range(size)])
    np.testing.assert_array_equal(memory.queue.numpy(), queue)
    assert memory.least.numpy() == of_ranks[rank]["least"]
    mean = np.mean([values["average"] for values in of_ranks])
    np.testing.assert_allclose(memory.average.numpy(), mean, rtol=1e-6)
    # A rank that has taken fewer steps has statistics, too.
    means = np.stack([values["moving_mean"] for values in of_ranks])
    np.testing.assert_allclose(norm.moving_mean.numpy(), means.mean(0), rtol=1e-5)


def test_statistics_of_a_cut_layer_stay_those_of_its_part(exchange: Exchange, size: int) -> None:
    grid = ringar.parallel.Grid(model=size if size % 2 else 2)
    part = keras.Variable(np.full(3, grid.part + grid.group / 2, np.float32), trainable=False)
    replica = keras.Variable(np.full(2, ringar.rank(), np.float32), trainable=False)

    class Holder(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.replica, self.built = part, replica, True

        def call(self, x: tf.Tensor) -> tf.Tensor:
            return x

    from ringar.keras import moving_statistics
    from ringar.sharding import cut

    cut.mark(part, cut.Cut(0, grid))
    moving_statistics.Combination("mean").combine(keras.Sequential([Holder()]))
    mean_group = (grid.data - 1) / 4
    np.testing.assert_allclose(keras.ops.convert_to_numpy(part), grid.part + mean_group)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(replica), (size - 1) / 2)
    grid.close()

    if "renorm" not in inspect.signature(keras.layers.BatchNormalization).parameters:
        return  # an early Keras 3
    # Renormalization keeps standard deviations, whose squares are variances.
    norm = keras.layers.BatchNormalization(renorm=True)
    norm.build((None, 1))
    for weight in norm.non_trainable_weights:
        weight.assign([1.0 + ringar.rank()])
    moving_statistics.combine(keras.Sequential([norm]))
    ranks = 1.0 + np.arange(size)
    variance = np.mean(ranks**2) + ranks.var()
    np.testing.assert_allclose(norm.renorm_mean.numpy(), ranks.mean(), rtol=1e-6)
    np.testing.assert_allclose(norm.renorm_stddev.numpy(), np.sqrt(variance), rtol=1e-6)
