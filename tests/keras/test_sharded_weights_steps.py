"""What a step with sharded weights sends and keeps; its files, its forward passes, its errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.errors import UnsupportedError
from ringar.keras.zero import regather
from ringar.keras.zero.weight_slice import is_sharded
from tests.keras import common
from tests.keras.test_sharded_files import Stop, assert_same, state, train
from tests.plugin import fast_if, run_job

pytestmark = pytest.mark.usefixtures("initialized")

K = keras.optimizers
L = keras.layers
WIDTH = 24  # goes round on 2, 3 and 4 ranks


def deep(layers: int = 4) -> keras.Model:
    keras.utils.set_random_seed(0)
    stack = [L.Dense(WIDTH, use_bias=False, activation="tanh") for _ in range(layers)]
    return keras.Sequential([keras.Input((WIDTH,)), *stack])


def stepper(model: keras.Model, jit: bool = False) -> Any:
    optimizer = ringar.DistributedOptimizer(K.SGD(0.1), shard="weights")
    optimizer.build(model.trainable_variables)
    x = tf.ones((2, WIDTH))

    @tf.function(autograph=False, jit_compile=jit)
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return step


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("jit", [False, fast_if(False, True)])
def test_bytes_are_those_of_three_passes_over_the_weights(jit: bool, size: int) -> None:
    step = stepper(deep(), jit)
    step()
    ringar.reset_stats()
    step()
    sent_bytes = {name: traffic.bytes for name, traffic in ringar.stats("collective").items()}
    layer = 4 * WIDTH * WIDTH * (size - 1) // size
    # The backward pass ends at the first layer, and begins with the last, which has its weights.
    assert sent_bytes["allgather"] == (4 + 2) * layer
    assert sent_bytes["reducescatter"] == 4 * layer
    assert sent_bytes["allgather"] + sent_bytes["reducescatter"] < 1.5 * 4 * 2 * layer
    assert sent_bytes["allreduce"] <= 100  # the messages before a step


@pytest.mark.ranks(2)
def test_backward_pass_reads_no_weight_of_the_forward_pass() -> None:
    graph = stepper(deep()).get_concrete_function().graph
    gathers = [op for op in graph.get_operations() if op.type == "RingarAllgather"]
    names = [op.get_attr("spec").decode().rsplit("name=")[1] for op in gathers]
    again = [f"weights/gather_again_{number}" for number in (3, 2)]
    assert names == [*(f"weights/gather_{number}" for number in (1, 2, 3, 4)), *again]
    readers = [{op.name for op in _multiplications(gather)} for gather in gathers]
    assert [len(group) for group in readers] == [1, 1, 1, 2, 1, 1]
    assert all("gradient_tape" not in name for group in readers[:3] for name in group)
    assert all("gradient_tape" in name for group in readers[4:] for name in group)
    # A layer ahead, and not all at once: each waits for the input of the layer before.
    assert any(op.name.endswith("Tanh") for op in gathers[2].control_inputs)


def _multiplications(op: Any) -> list[Any]:
    """The products that read what an op returns, behind ops that change its form only."""
    multiplications = []
    for output in op.outputs:
        for reader in output.consumers():
            if reader.type == "MatMul":
                multiplications.append(reader)
            elif reader.type in ("Reshape", "Identity", "IdentityN"):
                multiplications += _multiplications(reader)
    return multiplications


@pytest.mark.ranks(1)
def test_views_of_weights_are_made_again() -> None:
    @tf.function(autograph=False)
    def compute(weight: tf.Tensor, again: tf.Tensor) -> tf.Tensor:
        view = tf.transpose(tf.reshape(weight, [2, 3]))
        forward = view * 2.0
        place = regather.place()
        backward = view * 3.0 + tf.reshape(weight, [3, 2])
        assert regather.redirect(weight, again, place) == 2
        return tf.stack([forward, backward])

    weight, again = np.arange(6.0), np.arange(10.0, 16.0)
    view = again.reshape(2, 3).T * 3.0 + again.reshape(3, 2)
    expected = np.stack([weight.reshape(2, 3).T * 2.0, view])
    np.testing.assert_array_equal(compute(tf.constant(weight), tf.constant(again)), expected)


def trained(shard: Any, steps: int = 4, **fit: Any) -> keras.Model:
    model = common.dense_model()
    # Sharded or not, this function reads the weights of the model.
    model.compile(ringar.DistributedOptimizer(K.Adam(0.01, use_ema=True), shard=shard), "mse")
    model.evaluate(*common.regression(8), verbose=0)
    train(model, steps, **fit)
    return model


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("dtype", ["float32", fast_if(False, "mixed_float16")])
def test_file_is_that_of_plain_training_and_loads_in_any_way(
    dtype: str,
    size: int,
    policy: Callable[[str], None],
    shared_tmp_path: Path,
    exchange: Callable[[Any], Any],
) -> None:
    policy(dtype)
    plain, cut = trained(None), trained("weights")
    file = shared_tmp_path / "model.keras"
    cut.save(file)  # on every rank
    loaded = keras.models.load_model(file)  # without ringar
    assert_same(state(loaded), state(plain), 1e-6)
    again = ringar.load_model(file, shard="weights")
    assert all(map(is_sharded, again.weights))
    for model in (cut, again):
        train(model, 2)
    assert_same(state(again), state(cut))
    cut.load_weights(file)
    assert_same(common.values(cut), common.values(loaded))
    exchange("done")


@pytest.mark.ranks(2)
def test_a_model_without_an_optimizer_is_written_by_the_first_rank(
    rank: int, shared_tmp_path: Path, exchange: Callable[[Any], Any]
) -> None:
    with ringar.sharded_weights():
        model = common.dense_model()
    encoder = keras.Model(model.inputs, model.layers[0].output)
    encoder.save_weights(shared_tmp_path / "one.weights.h5")  # which one rank can open only
    encoder.save(shared_tmp_path / f"{rank}.keras")
    exchange("saved")
    assert {file.name for file in shared_tmp_path.iterdir()} == {"one.weights.h5", "0.keras"}
    loaded = keras.models.load_model(shared_tmp_path / "0.keras")
    assert_same(common.values(loaded), common.values(common.dense_model())[:2])
    encoder.load_weights(shared_tmp_path / "one.weights.h5")
    assert_same(common.values(encoder), common.values(loaded))
    exchange("done")


@pytest.mark.slow
@pytest.mark.ranks(2, 3, 4)
def test_backup_resumes_bit_for_bit(
    rank: int, shared_tmp_path: Path, exchange: Callable[[Any], Any]
) -> None:
    expected = state(trained("weights", 3, epochs=3))
    backup = keras.callbacks.BackupAndRestore(shared_tmp_path / f"{rank}", delete_checkpoint=False)
    checkpoint = keras.callbacks.ModelCheckpoint(str(shared_tmp_path / "{epoch}.weights.h5"),
                                                 save_weights_only=True)  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        trained("weights", 3, epochs=3, callbacks=[backup, checkpoint, Stop(1)])
    exchange("stopped")
    resumed = trained("weights", 3, epochs=3, callbacks=[backup])
    assert_same(state(resumed), expected)
    plain = common.dense_model()
    plain.load_weights(shared_tmp_path / "2.weights.h5")
    exchange("done")


@pytest.mark.ranks(2, 3, 4)
def test_ranks_have_different_numbers_of_batches_in_forward_passes(rank: int) -> None:
    model = trained("weights", 2)
    plain = common.dense_model()
    plain.compile("sgd", "mse")
    plain.set_weights(model.get_weights())
    x, y = common.regression(80)
    part = slice(0, 8 * (rank + 1))
    assert model.evaluate(x[part], y[part], batch_size=8, verbose=0) == pytest.approx(
        plain.evaluate(x[part], y[part], batch_size=8, verbose=0), rel=1e-6
    )
    expected = plain.predict(x[:17], verbose=0)
    for data in (x[:17], tf.data.Dataset.from_generator(
        lambda: iter([x[:9], x[9:17]]), output_signature=tf.TensorSpec([None, 6])
    )):  # fmt: skip
        received = ringar.predict(model, data, batch_size=None if data is not x else 4)
        np.testing.assert_allclose(received, expected, rtol=1e-6)
    np.testing.assert_allclose(model(x[:5]), expected[:5], rtol=1e-6)


@pytest.mark.ranks(2, 3)
def test_ranks_repeat_the_forward_passes_of_the_model_that_others_evaluate(rank: int) -> None:
    x, y = common.regression(40)
    part = slice(0, 8 * (rank + 1))
    models = []
    for seed in (0, 1):
        with ringar.sharded_weights():
            model = common.dense_model(seed)
        model.compile("sgd", "mse", jit_compile=False)
        models.append(model)
    first, second = models
    first.evaluate(x[part], y[part], batch_size=8, verbose=0)
    second.predict(x[part], batch_size=8, verbose=0)
    received = first.evaluate(x[part], y[part], batch_size=8, verbose=0)  # traced already
    expected = np.square(common.dense_model()(x[part]) - y[part]).mean()
    assert received == pytest.approx(expected, rel=1e-5)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("frozen", [(True,), fast_if(False, (False, True, False))])
def test_frozen_layers_send_no_gradients(frozen: tuple[bool, ...], rank: int) -> None:
    """Layers are frozen before the first step, or between fits; ranks have uneven batches."""
    data = common.own_batches(common.regression(3 * common.GLOBAL_BATCH)).take(3 - rank)
    of_both = []
    for shard in (None, "weights"):
        with ringar.sharded_weights() if shard else contextlib.nullcontext():
            model = common.dense_model()
        for is_frozen in frozen:
            model.layers[0].trainable = not is_frozen
            optimizer = ringar.DistributedOptimizer(K.SGD(0.1, momentum=0.9), shard=shard)
            model.compile(optimizer, "mse", jit_compile=False, run_eagerly=shard is None)
            ringar.reset_stats()
            first = ringar.callbacks.Distributed()
            model.fit(data, verbose=0, validation_data=data, callbacks=[first])
        of_both.append([*common.values(model), *map(np.asarray, model.history.history.values())])
    assert common.largest_difference(*of_both) <= 1e-6
    if frozen[-1]:  # three steps of the last layer: of a kernel of 8 elements, and a bias
        assert ringar.stats("collective")["reducescatter"].bytes == 3 * 4 * (8 + 1) // 2


@pytest.mark.ranks(2, 3)
def test_weights_are_exported_and_return_to_another_optimizer(
    rank: int, shared_tmp_path: Path, exchange: Callable[[Any], Any]
) -> None:
    x, y = common.regression(24)
    of_both = []
    for shard in ("weights", None):
        model = trained(shard, 1)
        for other in ("gradients", None):
            if shard is not None and other is not None:
                model.export(shared_tmp_path / "exported", verbose=False)  # on every rank
                assert all(map(is_sharded, model.weights))
                exchange("exported")
                exported = tf.saved_model.load(shared_tmp_path / "exported")
                np.testing.assert_allclose(exported.serve(x), model(x), rtol=1e-5)
            optimizer = ringar.DistributedOptimizer(K.SGD(0.1), shard=other)
            model.compile(optimizer, "mse", jit_compile=False)
            first = model.evaluate(x, y, verbose=0)
            train(model, 1)
            assert not any(map(is_sharded, model.weights))
            of_both.append([*common.values(model), np.array(first), np.array(model.evaluate(x, y))])
    for received, expected in zip(of_both[:2], of_both[2:], strict=True):
        assert common.largest_difference(received, expected) <= 1e-6
    exchange("done")


class Function(keras.Model):
    """A model that calls its layers in a `tf.function`."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = L.Dense(WIDTH, activation="tanh")

    def build(self, shape: Any) -> None:
        self.dense.build(shape)

    @tf.function(autograph=False)
    def call(self, x: Any) -> Any:
        return self.dense(x)


@pytest.mark.ranks(2)
def test_functions_that_read_weights_are_refused() -> None:
    x = tf.ones((1, WIDTH))
    inner = Function()
    model = keras.Sequential([keras.Input((WIDTH,)), inner])  # traced with whole weights
    optimizer = ringar.DistributedOptimizer(K.SGD(0.1), shard="weights")
    optimizer.build(model.trainable_variables)
    with pytest.raises(UnsupportedError, match="in a loop, a branch or a tf.function"):
        model(x)
    ringar.gather_together(inner)
    with pytest.raises(UnsupportedError, match=r"tf.function reads .*dense.*/kernel"):
        model(x)


@pytest.mark.ranks(2)
def test_what_is_refused() -> None:
    model = deep(2)
    optimizer = ringar.DistributedOptimizer(K.SGD(0.1), shard="weights")
    with pytest.raises(ValueError, match=r"call\s+optimizer.build\(model.trainable_variables\)"):
        optimizer.apply([tf.ones(v.shape) for v in model.weights], model.weights)
    with pytest.raises(UnsupportedError, match=r"expected variables of layers"):
        optimizer.build([tf.Variable(1.0)])
    optimizer.build(model.trainable_variables)
    repeated = tf.function(
        lambda x: tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, model(x)), [0, x])
    )
    with pytest.raises(UnsupportedError, match="in a loop, a branch or a tf.function"):
        repeated(tf.ones((1, WIDTH)))
    normalized = keras.Sequential([keras.Input((WIDTH,)), L.SpectralNormalization(L.Dense(2))])
    ringar.DistributedOptimizer("sgd", shard="weights").build(normalized.trainable_variables)
    with pytest.raises(UnsupportedError, match=r"dense.*/kernel: expected a weight .* not change"):
        normalized(tf.ones((1, WIDTH)), training=True)


IN_JOBS = """
import os, sys
import keras, ringar, tensorflow as tf
from ringar.errors import RingarError
from tests.keras import common
ringar.init()
model = common.dense_model()
shard = ["weights", {second}][ringar.rank()]
model.compile(ringar.DistributedOptimizer("adam", shard=shard), "mse")
data = common.own_batches(common.regression(48))
class Die(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if {dies} and batch == 1 and ringar.rank() == 1:
            os._exit(3)
try:
    model.fit(data, verbose=0, epochs=3, callbacks=[ringar.callbacks.Distributed(), Die()])
except Exception as error:
    assert {text!r} in str(error), error
    print("an error as expected")
else:
    raise AssertionError("no error")
"""


@pytest.mark.job
def test_ranks_that_differ_get_an_error_on_all() -> None:
    program = IN_JOBS.format(second='"gradients"', dies=False, text="received weights (rank 0)")
    result = run_job(2, program).check()
    assert result.stdout.count("an error as expected") == 2


@pytest.mark.job
def test_a_rank_that_is_lost_is_an_error_of_the_others() -> None:
    program = IN_JOBS.format(second='"weights"', dies=True, text="rank 1")
    result = run_job(2, program, deadline=60)
    assert result.code == 3
    assert "no error" not in result.stderr
