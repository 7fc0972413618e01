"""Horovod's optimizers and tapes against gradients that are added up by hand."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
import ringar.horovod.keras as plain_keras
import ringar.horovod.tensorflow as hvd_tf
import ringar.horovod.tensorflow.keras as hvd
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

RATE = 0.5


def slope(rank: int, step: int = 0) -> np.ndarray:
    return np.array([1.0, -2.0], np.float32) * (rank + 1) + step


def mean(step: int = 0) -> np.ndarray:
    return np.mean([slope(rank, step) for rank in range(hvd.size())], 0)


def stepped(optimizer: Any, variables: list[keras.Variable], steps: int = 1) -> None:
    for step in range(steps):
        optimizer.apply([tf.constant(slope(hvd.rank(), step)) for _ in variables], variables)


def variables(count: int = 1) -> list[keras.Variable]:
    return [keras.Variable(np.zeros(2, np.float32), name=f"v{i}") for i in range(count)]


def distributed(**arguments: Any) -> keras.optimizers.Optimizer:
    return hvd.DistributedOptimizer(keras.optimizers.SGD(RATE), **arguments)


def test_gradients_are_averaged() -> None:
    (v,) = variables()
    stepped(distributed(), [v])
    np.testing.assert_allclose(v, -RATE * mean(), rtol=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [
        {"op": hvd.Sum},
        {"gradient_predivide_factor": 4.0},
        {"groups": 2},
        {"num_groups": 3},
        {"compression": hvd.Compression.fp16, "name": "named", "device_dense": "/cpu:0"},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_arguments(arguments: dict[str, Any]) -> None:
    weights = variables(3)
    if "num_groups" in arguments:
        with pytest.warns(DeprecationWarning, match="num_groups"):
            optimizer = distributed(**arguments)
    else:
        optimizer = distributed(**arguments)
    stepped(optimizer, weights, 2)
    factor = hvd.size() if "op" in arguments else 1
    for v in weights:
        np.testing.assert_allclose(v, -RATE * factor * (mean(0) + mean(1)), rtol=1e-3)


def test_groups_of_variables() -> None:
    weights = variables(4)
    stepped(distributed(groups=[[weights[0], weights[2]], [weights[3]]]), weights)
    for v in weights:
        np.testing.assert_allclose(v, -RATE * mean(), rtol=1e-6)


def test_wrong_arguments() -> None:
    for options, message in (
        ({"op": hvd_tf.Adasum}, "`op` must be Average or Sum"),
        ({"groups": 0}, "`groups` must be a positive number"),
        ({"groups": "ab"}, "`groups` must be"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "must be 1 but for op=Average"),
        ({"backward_passes_per_step": 0}, "must be 1 or more"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            distributed(**options)
    with pytest.raises(ValueError, match="of TensorFlow 1"):
        hvd_tf.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    with pytest.raises(ValueError, match="DistributedGradientTape takes it"):
        hvd_tf.DistributedOptimizer(keras.optimizers.SGD(), op=hvd_tf.Adasum)


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("way", ["eager", "function", "compiled"])
def test_backward_passes(way: str, averages: bool) -> None:
    """Three passes add up; a fourth one waits. The count of steps is that of passes."""
    (v,) = variables()
    optimizer = distributed(backward_passes_per_step=3, average_aggregated_gradients=averages)

    def step(gradient: tf.Tensor) -> None:
        optimizer.apply([gradient], [v])

    run = step if way == "eager" else tf.function(step, jit_compile=way == "compiled")
    values = []
    for number in range(7):
        run(tf.constant(slope(hvd.rank(), number)))
        values.append(v.numpy())
    first = -RATE * sum(mean(i) for i in range(3)) / (3 if averages else 1)
    second = first - RATE * sum(mean(i) for i in range(3, 6)) / (3 if averages else 1)
    expected = np.stack([np.zeros(2)] * 2 + [first] * 3 + [second] * 2)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    assert int(optimizer.iterations) == 7


@pytest.mark.ranks(2, 3, 4)
def test_backward_passes_send_once_in_a_step() -> None:
    (v,) = variables()
    optimizer = distributed(backward_passes_per_step=4)
    stepped(optimizer, [v], 4)
    ringar.reset_stats()
    stepped(optimizer, [v], 8)
    assert ringar.stats(by="collective")["allreduce"].calls == 2


@pytest.mark.ranks(2, 3, 4)
def test_ranks_with_other_arguments_all_get_an_error() -> None:
    """Otherwise they would reduce the gradients of different batches."""
    passes = 2 if hvd.rank() else 3
    (v,) = variables()
    with pytest.raises(ringar.errors.MismatchError, match=r"passes_per_step .* 3 \(rank 0\)"):
        stepped(distributed(backward_passes_per_step=passes), [v])


def test_backward_passes_refuse_slices_unless_they_are_made_dense() -> None:
    v = keras.Variable(np.zeros((4, 2), np.float32))

    def gradient() -> tf.IndexedSlices:
        return tf.IndexedSlices(tf.ones([1, 2]), tf.constant([hvd.rank()]), tf.constant([4, 2]))

    with pytest.raises(ValueError, match="pass sparse_as_dense=True"):
        distributed(backward_passes_per_step=2).apply([gradient()], [v])
    optimizer = distributed(backward_passes_per_step=2, sparse_as_dense=True, op=hvd.Sum)
    for _ in range(2):
        optimizer.apply([gradient()], [v])
    expected = np.zeros((4, 2))
    expected[: hvd.size()] = -RATE * 2
    np.testing.assert_allclose(v, expected)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("scales", [True, False])
def test_local_variables_keep_their_gradients(scales: bool, passes: int) -> None:
    shared, local = variables(2)
    optimizer = distributed(scale_local_gradients=scales, backward_passes_per_step=passes)
    optimizer.register_local_var(local)
    for _ in range(passes):
        stepped(optimizer, [shared, local])
    np.testing.assert_allclose(shared, -RATE * passes * mean(), rtol=1e-6)
    scale = hvd.size() if scales else 1
    np.testing.assert_allclose(local, -RATE * passes * slope(hvd.rank()) / scale, rtol=1e-6)


def small_model() -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(2, kernel_initializer="ones", name="own"),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )


def data(rank: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(rank).normal(size=(8, 2)).astype("float32")
    return x, x.sum(1, keepdims=True) * 3


def test_a_partial_optimizer_leaves_layers_to_their_rank() -> None:
    model = small_model()
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1), local_layers=model.layers[0]
    )
    model.compile(optimizer, "mse")
    model.fit(*data(hvd.rank()), batch_size=8, verbose=0)
    of_ranks = hvd_tf.allgather_object(model.get_weights())
    for other in of_ranks[1:]:
        assert np.abs(other[0] - of_ranks[0][0]).max() > 1e-4
        np.testing.assert_array_equal(other[2], of_ranks[0][2])
    with pytest.raises(ValueError, match="must be layers of Keras"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=["no layer"])


def test_partial_tape() -> None:
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    local_layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    x = tf.constant([[1.0 + hvd.rank()]])
    with tf.GradientTape() as plain:
        loss = tf.reduce_sum(dense(x)) + tf.reduce_sum(local_layer(x))
    tape: Any = hvd_tf.PartialDistributedGradientTape(
        plain, local_layers=[local_layer], scale_local_gradients=False
    )
    weights = [local_layer.kernel.value, dense.kernel.value]
    local, common = tape.get_local_and_global_gradients(loss, weights)
    ((source, local_gradient),), ((other, mean_gradient),) = local, common
    assert source is weights[0]
    assert other is weights[1]
    np.testing.assert_allclose(mean_gradient, [[(hvd.size() + 1) / 2]], rtol=1e-6)
    np.testing.assert_allclose(local_gradient, [[1.0 + hvd.rank()]])


def test_tape() -> None:
    v = tf.Variable([1.0, 2.0])
    tape = hvd_tf.DistributedGradientTape(
        tf.GradientTape(), gradient_predivide_factor=2.0, groups=1
    )
    assert not isinstance(tape, tf.GradientTape)
    with tape:
        loss = tf.reduce_sum(v * slope(hvd.rank()))
    assert tape.watched_variables() == (v,)
    np.testing.assert_allclose(tape.gradient(loss, [v])[0], mean(), rtol=1e-6)


def test_sparse_gradients_of_a_tape() -> None:
    table = tf.Variable(tf.zeros([4, 2]))
    for dense in (False, True):
        with tf.GradientTape() as plain:
            loss = tf.reduce_sum(tf.gather(table, [hvd.rank(), 3]))
        tape = hvd_tf.DistributedGradientTape(plain, sparse_as_dense=dense)
        gradient = tape.gradient(loss, table)
        assert isinstance(gradient, tf.IndexedSlices) is not dense
        expected = np.zeros((4, 2))
        expected[: hvd.size()] += 1 / hvd.size()
        expected[3] += 1
        np.testing.assert_allclose(tf.convert_to_tensor(gradient), expected, rtol=1e-6)


@pytest.mark.ranks(2, 3, 4)
def test_ranks_outside_a_process_set_train_alone() -> None:
    own_set = hvd.add_process_set([1, 0][: max(hvd.size() - 1, 1)])
    (v,) = variables()
    stepped(distributed(process_set=own_set), [v])
    members = [slope(rank) for rank in own_set.ranks]
    expected = np.mean(members, 0) if own_set.included() else slope(hvd.rank())
    np.testing.assert_allclose(v, -RATE * expected, rtol=1e-6)
    assert hvd.remove_process_set(own_set)


def test_mixed_precision_and_backward_passes(tmp_path: Path) -> None:
    """An overflow of one rank in any pass skips the step of all ranks."""
    v = keras.Variable(np.zeros(2, np.float32))
    inner = distributed(backward_passes_per_step=2)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    optimizer.build([v])

    def passes(*gradients: np.ndarray) -> None:
        for gradient in gradients:
            optimizer.apply([tf.constant(8 * gradient)], [v])

    passes(slope(hvd.rank()), slope(hvd.rank(), 1))
    after = -RATE * (mean(0) + mean(1))
    np.testing.assert_allclose(v, after, rtol=1e-6)
    overflow = np.array([np.inf, 0], np.float32) if hvd.rank() == 0 else slope(hvd.rank())
    passes(overflow, slope(hvd.rank()))
    np.testing.assert_allclose(v, after, rtol=1e-6)
    scale = float(optimizer.dynamic_scale)
    assert len(set(hvd_tf.allgather_object(scale))) == 1
    assert scale == 4.0


def test_helper_of_gradients() -> None:
    (v,) = [tf.Variable([0.0, 0.0])]
    helper = hvd_tf.LocalGradientAggregationHelper(
        2, lambda grads, vars: [hvd_tf.allreduce(g) for g in grads], False, True, hvd.rank(), None
    )
    optimizer = keras.optimizers.SGD(RATE)
    optimizer.build([v])
    for step in range(2):
        (gradient,) = helper.compute_gradients([tf.constant(slope(hvd.rank(), step))], [v])
        helper.apply_gradients(partial(optimizer.apply, [gradient], [v]), optimizer)
    np.testing.assert_allclose(v, -RATE * (mean(0) + mean(1)) / 2, rtol=1e-6)
    assert int(optimizer.iterations) == 2


def test_models_are_loaded_with_a_distributed_optimizer(shared_tmp_path: Path) -> None:
    path = shared_tmp_path / "model.keras"
    model = small_model()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", run_eagerly=True)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(*data(hvd.rank()), batch_size=8, verbose=0, callbacks=callbacks)
    if hvd.rank() == 0:
        model.save(path)
    hvd_tf.barrier()
    fresh = small_model()
    fresh.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.02)), "mse", run_eagerly=True)
    # As examples resume: rank 0 alone loads, and training begins with its state.
    loaded = hvd.load_model(path, custom_objects={}) if hvd.rank() == 0 else fresh
    assert int(loaded.optimizer.iterations) == int(hvd.rank() == 0)
    loaded.fit(*data(hvd.rank()), batch_size=8, epochs=0, callbacks=callbacks)
    for net in (loaded, model):  # with the rows in one order, so that the sums have the same bits
        net.fit(*data(hvd.rank()), batch_size=8, shuffle=False, verbose=0)
    for array, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_optimizers_of_ones_own_are_loaded(shared_tmp_path: Path) -> None:
    class Own(keras.optimizers.SGD):
        pass

    path = shared_tmp_path / "own.keras"
    model = small_model()
    model.compile(Own(0.25), "mse")
    if hvd.rank() == 0:
        model.save(path)
    hvd_tf.barrier()
    loaded = plain_keras.load_model(path, custom_optimizers=[Own])
    assert isinstance(loaded.optimizer, Own)
    assert hasattr(loaded.optimizer, "register_local_var")


def test_synchronized_batch_normalization() -> None:
    layer = hvd_tf.SyncBatchNormalization(momentum=0.0)
    x = [np.full((2, 3), rank, np.float32) + np.arange(3) for rank in range(hvd.size())]
    layer(tf.constant(x[hvd.rank()]), training=True)
    np.testing.assert_allclose(layer.moving_mean, np.concatenate(x).mean(0), rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, np.concatenate(x).var(0), atol=1e-5)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(again) is hvd_tf.SyncBatchNormalization
    with pytest.raises(ValueError, match="`fused` must be False"):
        hvd_tf.SyncBatchNormalization(fused=True)


def test_join_serves_ranks_that_have_more_data() -> None:
    """Of a loop with a tape: rank r has r + 1 batches."""
    v = tf.Variable([0.0, 0.0])
    steps = []
    for step in range(hvd.rank() + 1):
        with hvd_tf.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
            loss = tf.reduce_sum(v * slope(hvd.rank(), step))
        (gradient,) = tape.gradient(loss, [v])
        v.assign_sub(gradient)
        steps.append(step)
    assert hvd_tf.join() == hvd.size() - 1
    total = sum(slope(rank, step) for rank in range(hvd.size()) for step in range(rank + 1))
    np.testing.assert_allclose(v, -total, rtol=1e-6)


@pytest.mark.parametrize("way", [fast_if(True, "plain"), fast_if(False, "compiled")])
def test_horovods_main_example_of_keras(way: str) -> None:
    """The loop of Horovod's documentation, with the arguments of its example for Keras."""
    keras.utils.set_random_seed(hvd.rank())
    model = small_model()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.01 * hvd.size(), momentum=0.5),
        backward_passes_per_step=1,
        average_aggregated_gradients=True,
    )
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=way == "compiled")
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(
            initial_lr=0.01 * hvd.size(), warmup_epochs=2, verbose=0
        ),
    ]
    history = model.fit(*data(hvd.rank()), batch_size=4, epochs=6, verbose=0, callbacks=callbacks)
    assert history.history["loss"][-1] < history.history["loss"][0]
    of_ranks = hvd_tf.allgather_object((model.get_weights(), history.history["loss"]))
    for weights, losses in of_ranks[1:]:
        assert losses == of_ranks[0][1]
        for array, expected in zip(weights, of_ranks[0][0], strict=True):
            np.testing.assert_array_equal(array, expected)


def test_local_variables_of_a_tape_stay_as_they_are() -> None:
    local_variable, shared_variable = tf.Variable(1.0 + hvd.rank()), tf.Variable(2.0 + hvd.rank())
    tape: Any = hvd_tf.DistributedGradientTape(tf.GradientTape())
    tape.register_local_source(local_variable)
    with tape:
        loss = local_variable * shared_variable
    tape.gradient(loss, [local_variable, shared_variable])
    assert (float(local_variable), float(shared_variable)) == (1.0 + hvd.rank(), 2.0)
