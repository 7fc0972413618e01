"""Models that Keras does not build, train or call in the usual way, against one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.keras import common
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

Exchange = Callable[[Any], list[Any]]


def layers(*units: int) -> keras.Model:
    return keras.Sequential([keras.Input((6,)), *(keras.layers.Dense(n) for n in units)])


class GAN(keras.Model):
    """Two models, two optimizers and no `call`, as in Keras' own guide, without its noise."""

    def __init__(self, distributed: bool) -> None:
        super().__init__()
        self.generator, self.discriminator = layers(5, 6), layers(4, 1)
        self.distributed = distributed

    def compile(self, g_optimizer: Any, d_optimizer: Any, loss_fn: Any, **options: Any) -> None:
        super().compile(**options)
        wrap = ringar.DistributedOptimizer if self.distributed else lambda optimizer: optimizer
        self.g_optimizer, self.d_optimizer = wrap(g_optimizer), wrap(d_optimizer)
        self.loss_fn = loss_fn

    def train_step(self, data: Any) -> dict[str, Any]:
        real, latent = data
        images = tf.concat([self.generator(latent), real], 0)
        labels = tf.concat([tf.ones_like(latent[:, :1]), tf.zeros_like(real[:, :1])], 0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(images))
        weights = self.discriminator.trainable_variables
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            fooled = self.discriminator(self.generator(latent))
            g_loss = self.loss_fn(tf.zeros_like(fooled), fooled)
        weights = self.generator.trainable_variables
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


def train_gan(data: tf.data.Dataset, seed: int, distributed: bool, **options: Any) -> GAN:
    keras.utils.set_random_seed(seed)
    model = GAN(distributed)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1), loss, **options)
    callbacks = [ringar.callbacks.Distributed()] if distributed else []
    model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
    return model


@pytest.mark.parametrize(
    "options", [{}, fast_if(False, {"jit_compile": True}), {"run_eagerly": True}]
)
def test_gan(options: dict[str, Any], rank: int, size: int, exchange: Exchange) -> None:
    """Ranks begin with other weights, and have uneven batches: 3 of 4 rows, and one more."""
    rng = np.random.default_rng(5)
    data = [rng.normal(size=(13 * size, 6)).astype(np.float32) for _ in range(2)]
    dataset = tf.data.Dataset.from_tensor_slices(tuple(data))
    shard = dataset.shard(size, rank).batch(4)
    model = train_gan(shard, rank, True, **options)
    single = train_gan(dataset.batch(4 * size), 0, False, **options)
    assert common.largest_difference(common.values(model), common.values(single)) < 1e-4
    assert len(set(exchange(str([v.tobytes() for v in common.values(model)])))) == 1


@pytest.mark.parametrize("eagerly", [False, True])
def test_train_on_batch(eagerly: bool, rank: int, size: int) -> None:
    """Losses and metrics are those of all ranks' batches, as in `fit`."""
    # An eager step has its gradients before weights are compared.
    model, single = common.dense_model(0 if eagerly else rank), common.dense_model()
    optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(0.1))
    metrics = lambda: ["mae", keras.metrics.RootMeanSquaredError(name="rmse")]  # noqa: E731
    model.compile(optimizer, "mse", metrics=metrics(), run_eagerly=eagerly)
    single.compile(keras.optimizers.SGD(0.1), "mse", metrics=metrics())
    for number in range(3):
        parts = [common.regression(4 + 2 * r, seed=10 * number + r) for r in range(size)]
        batch = [np.concatenate(part) for part in zip(*parts, strict=True)]
        received = model.train_on_batch(*parts[rank])
        np.testing.assert_allclose(received, single.train_on_batch(*batch), rtol=1e-5)
    received = model.test_on_batch(*parts[rank], return_dict=True)
    expected = single.test_on_batch(*batch, return_dict=True)
    assert list(received) == list(expected)
    np.testing.assert_allclose(list(received.values()), list(expected.values()), rtol=1e-5)
    assert common.largest_difference(common.values(model), common.values(single)) < 1e-5
    # A later fit with the callback observes the same step.
    model.fit(*common.regression(4), verbose=0, callbacks=[ringar.callbacks.Distributed()])


class SharpnessAware(keras.Sequential):
    """SAM as in docs/training.md: the first gradient moves the weights, the second one counts."""

    reduces = True
    is_exact = True

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        weights = self.trainable_weights
        before = [tf.identity(weight) for weight in weights]
        tape = tf.GradientTape()
        gradients = self.gradients(
            ringar.DistributedGradientTape(tape) if self.reduces else tape, x, y
        )
        norm = tf.linalg.global_norm(gradients)
        steps = [0.05 * gradient / (norm + 1e-12) for gradient in gradients]
        for weight, step in zip(weights, steps, strict=True):
            weight.assign_add(step)
        gradients = self.gradients(tf.GradientTape(), x, y)
        for weight, step, value in zip(weights, steps, before, strict=True):
            weight.assign(value if self.is_exact else weight - step)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"steps": self.optimizer.iterations}

    def gradients(self, tape: Any, x: Any, y: Any) -> list[Any]:
        with tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        return tape.gradient(loss, self.trainable_weights)


def test_step_that_moves_weights_and_puts_them_back(rank: int, size: int) -> None:
    """One that moves them by a gradient of its own drifts, and the error says what to reduce."""
    dataset = tf.data.Dataset.from_tensor_slices(common.regression(13 * size))
    shard = dataset.shard(size, rank).batch(4)

    def trained(data: Any, distributed: bool, **ways: bool) -> keras.Model:
        model = SharpnessAware(common.dense_model().layers)
        for name, value in {"reduces": distributed, **ways}.items():
            setattr(model, name, value)
        optimizer: Any = keras.optimizers.SGD(0.1)
        callbacks = [ringar.callbacks.Distributed()] if distributed else []
        model.compile(ringar.DistributedOptimizer(optimizer) if distributed else optimizer, "mse")
        model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
        return model

    model, single = trained(shard, True), trained(dataset.batch(4 * size), False)
    assert common.largest_difference(common.values(model), common.values(single)) < 1e-5
    if size > 1:
        text = r"check of weights.*train_step of this model must reduce.*DistributedGradientTape"
        with pytest.raises(ringar.errors.MismatchError, match=text):
            trained(shard, True, reduces=False, is_exact=False)


class Accumulating(keras.Sequential):
    """Adds up the gradients of two batches before the optimizer gets their mean."""

    reduces = True  # each gradient, before it is added

    def build(self, shape: Any) -> None:
        super().build(shape)
        hidden = {"trainable": False, "initializer": "zeros"}
        self.sums = [self.add_weight(shape=w.shape, **hidden) for w in self.trainable_weights]
        self.steps = self.add_weight(shape=(), dtype="int32", **hidden)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        tape = tf.GradientTape()
        with ringar.DistributedGradientTape(tape) if self.reduces else tape as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_weights)
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign_add(gradient)
        self.steps.assign_add(1)
        tf.cond(self.steps % 2 == 0, self.apply, lambda: None)
        return {"steps": self.steps + 0}

    def apply(self) -> None:
        means = [total / 2.0 for total in self.sums]
        self.optimizer.apply_gradients(zip(means, self.trainable_weights, strict=True))
        for total in self.sums:
            total.assign(tf.zeros_like(total))


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("eagerly", [False, fast_if(False, True)])
def test_gradients_added_up_by_hand(eagerly: bool, rank: int, size: int) -> None:
    """Batches of each rank may differ if gradients are reduced before they are added."""

    def trained(rows: int, distributed: bool, reduces: bool = False) -> keras.Model:
        model = Accumulating(common.dense_model().layers)
        model.reduces = reduces
        model.build((None, 6))  # or the first batch makes the sums, and all ranks take rank 0's
        optimizer: Any = keras.optimizers.SGD(0.1)
        if distributed and not reduces:
            optimizer = ringar.DistributedOptimizer(optimizer)
        model.compile(optimizer, "mse", run_eagerly=eagerly)
        dataset = tf.data.Dataset.from_tensor_slices(common.regression(rows))
        data = dataset.shard(size, rank).batch(3) if distributed else dataset.batch(3 * size)
        callbacks = [ringar.callbacks.Distributed()] if distributed else []
        model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
        return model

    uneven = 9 * size + 1  # the first rank has a fourth batch
    for rows, reduces in ((uneven, True), (12 * size, False)):  # the sums end as zeros
        model, single = trained(rows, True, reduces), trained(rows, False)
        assert common.largest_difference(common.values(model), common.values(single)) < 1e-5
    if size > 1:
        text = (
            r"of the same sizes.*received 4 batches of 1 to 3 rows \(rank 0\), 3 batches of 3 to 3"
        )
        with pytest.raises(ringar.errors.MismatchError, match=text):
            trained(uneven, True)


class Late(keras.Model):
    """Makes a layer in its first step, and another one in a later epoch."""

    def __init__(self, later: bool) -> None:
        super().__init__()
        self.first = keras.layers.Dense(1)
        self.second = keras.layers.Dense(1)
        self.later = later
        self.calls = 0

    def call(self, x: Any) -> Any:
        self.calls += 1
        y = self.first(x)
        return y + self.second(x) if self.later and self.calls > 5 else y

    def build(self, shape: Any) -> None:
        self.built = True


def test_weights_that_a_late_step_makes(rank: int, size: int, exchange: Exchange) -> None:
    keras.utils.set_random_seed(rank)
    model = Late(later=True)
    # SGD makes no slots; its updates follow whatever variables there are.
    optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(0.0))
    model.compile(optimizer, "mse", run_eagerly=True)
    model.optimizer._check_variables_are_known = lambda variables: None
    x, y = common.regression(8)
    callbacks = [ringar.callbacks.Distributed()]
    with pytest.warns(UserWarning, match="made after the first step.*kernel"):
        model.fit(x, y, batch_size=2, epochs=2, verbose=0, callbacks=callbacks)
    assert len(set(exchange(str([v.tobytes() for v in common.values(model)])))) == 1


def test_a_trained_model_is_saved_and_copied(tmp_path: Any) -> None:
    """What observes the training step is no part of the model."""
    model = common.dense_model()
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(*common.regression(4), verbose=0, callbacks=[ringar.callbacks.Distributed()])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert common.largest_difference(common.values(model), common.values(loaded)) == 0.0
    assert "train_step" not in vars(loaded)
    clone = keras.models.clone_model(model)
    assert "train_step" not in vars(clone)
