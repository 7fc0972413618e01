"""A split net equals one net with grouped convolutions: forward, backward, after training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.sharding.cut import cut_of
from tests.comparison import assert_all_close
from tests.parallel import nets
from tests.parallel.conftest import OpenGrid
from tests.plugin import fast_if

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(1, 2, 4)]

TOLERANCE = 1e-5
ADAM = keras.optimizers.Adam
SGD = keras.optimizers.SGD
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: SGD(0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda: ADAM(1e-3),
    "global_clipnorm": lambda: ADAM(1e-3, global_clipnorm=0.3),
    "clipnorm": lambda: SGD(0.02, clipnorm=0.1),
    "accumulation": lambda: SGD(0.05, gradient_accumulation_steps=2),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(
        ADAM(1e-3, global_clipnorm=0.3), initial_scale=256.0
    ),
    "ema": lambda: SGD(0.05, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3),
}


@pytest.fixture(params=[1, 2, 4])
def grid(open_grid: OpenGrid, request: pytest.FixtureRequest) -> ringar.parallel.Grid:
    """Every number of parts that there are ranks for; the rest is data-parallel."""
    return open_grid(request.param)


def seeded(make: Callable[..., keras.Model], *args: Any) -> keras.Model:
    """The same initial weights for the split net and the whole one."""
    keras.utils.set_random_seed(3)
    return make(*args)


def part(values: Any, variable: Any) -> Any:
    """Of a whole variable's value, what this rank has of it."""
    cut = cut_of(variable)
    return values if cut is None else np.split(values, cut.grid.model, cut.axis)[cut.grid.part]


def assert_same_weights(
    split: keras.Model, reference: keras.Model, atol: float = TOLERANCE
) -> None:
    pairs = zip(reference.weights, split.weights, strict=True)
    expected = [part(original.numpy(), weight) for original, weight in pairs]
    assert_all_close(split.weights, expected, atol=atol)


def test_initial_weights_are_parts_of_the_whole(grid: ringar.parallel.Grid) -> None:
    split, reference = seeded(nets.split_net), seeded(nets.whole_net, grid.model)
    assert split.count_params() <= reference.count_params()
    assert_same_weights(split, reference, atol=0.0)


def test_ranks_without_a_common_seed_still_hold_parts_of_one_net(
    grid: ringar.parallel.Grid, rank: int
) -> None:
    keras.utils.set_random_seed(100 + rank)
    everyone = ringar.allgather_object([w.numpy() for w in nets.split_net().weights])
    for same_part in range(grid.model):
        for other in everyone[same_part :: grid.model]:
            assert_all_close(everyone[same_part], other)
    if grid.model > 1:
        assert not np.array_equal(everyone[0][0], everyone[1][0])


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "jit"])
def test_forward_and_gradients(grid: ringar.parallel.Grid, jit: bool) -> None:
    split, reference = seeded(nets.split_net), seeded(nets.whole_net, grid.model)
    x = np.random.default_rng(2).normal(size=(nets.BATCH, *nets.IMAGE)).astype("float32")

    def gradients(model: keras.Model) -> Any:
        @tf.function(jit_compile=jit)
        def compute(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = model(x, training=True)
                loss = tf.reduce_sum(tf.sin(y))
            return y, tape.gradient(loss, [x, *[v.value for v in model.trainable_variables]])

        return compute(tf.constant(x))

    (y, slopes), (expected, expected_gradients) = gradients(split), gradients(reference)
    np.testing.assert_allclose(y, expected, atol=TOLERANCE)
    np.testing.assert_allclose(slopes[0], expected_gradients[0], atol=TOLERANCE)
    pairs = zip(slopes[1:], expected_gradients[1:], split.trainable_variables, strict=True)
    for gradient, original, variable in pairs:
        scale = max(1.0, float(np.abs(original).max()))
        np.testing.assert_allclose(
            gradient,
            part(original.numpy(), variable),
            atol=TOLERANCE * scale,
            err_msg=variable.path,
        )


@pytest.mark.parametrize(
    ("name", "jit"),
    [
        *(fast_if(False, name, True) for name in ("sgd", "adam")),
        *(fast_if(name in ("adam", "global_clipnorm"), name, False) for name in OPTIMIZERS),
    ],
)
def test_training(grid: ringar.parallel.Grid, name: str, jit: bool) -> None:
    """Ten steps through fit, with the global batch dealt out to the model groups."""
    if grid.model == 1 and name != "adam":
        pytest.skip("data parallelism alone: tests/keras/test_same_numbers.py")
    if ringar.size() > 2 and (name, jit) != ("global_clipnorm", False):
        pytest.skip("on two ranks")
    make = OPTIMIZERS[name]
    reference = nets.train_whole(seeded(nets.whole_net, grid.model), make(), jit)
    split = nets.train(seeded(nets.split_net), make(), grid, jit)
    assert_same_weights(split, reference)
    np.testing.assert_allclose(nets.outputs(split), nets.outputs(reference), atol=TOLERANCE)


@pytest.mark.parametrize("jit", [False, fast_if(False, True)], ids=["plain", "jit"])
def test_hybrid(grid: ringar.parallel.Grid, jit: bool) -> None:
    """Every rank has examples of its own, whatever its part."""
    reference = nets.train_whole(seeded(nets.whole_hybrid_net), ADAM(1e-3), jit)
    split = nets.train(seeded(nets.hybrid_net), ADAM(1e-3), grid, jit, examples_differ=True)
    assert_same_weights(split, reference)


def test_kernels_that_are_cut_along_their_inputs(grid: ringar.parallel.Grid) -> None:
    reference = nets.train_whole(seeded(nets.whole_addend_net), ADAM(1e-3))
    split = nets.train(seeded(nets.addend_net), ADAM(1e-3), grid)
    assert_same_weights(split, reference)


def test_mixed_precision_skips_a_step_on_all_ranks_alike(grid: ringar.parallel.Grid) -> None:
    """An overflow in one part is one of all: the loss scale goes down everywhere."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = seeded(nets.split_net)
        # The initial scale overflows float16 for sure.
        inner = ringar.DistributedOptimizer(SGD(0.01), grid=grid)
        scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**40)
        model.compile(scaled, nets.LOSS)
        nets.fit(model, grid)
    finally:
        keras.config.set_dtype_policy(before)
    scales = ringar.allgather_object(float(scaled.dynamic_scale.numpy()))
    assert len(set(scales)) == 1
    assert scales[0] < 2.0**40
    assert all(np.isfinite(w.numpy()).all() for w in model.weights)


def test_a_tape_reduces_on_the_grid(grid: ringar.parallel.Grid) -> None:
    model = seeded(nets.split_net)
    x, y = next(iter(ringar.data.shard(nets.batches(1), grid=grid).batch(nets.BATCH // grid.data)))
    with ringar.DistributedGradientTape(tf.GradientTape(), grid=grid) as tape:
        loss = nets.LOSS(y, model(x, training=True))
    variables = model.trainable_variables
    gradients = tape.gradient(loss, [v.value for v in variables])
    assert len(gradients) == len(variables)


@pytest.mark.ranks(3)
def test_three_parts(open_grid: OpenGrid) -> None:
    grid, parts, layers = open_grid(3), ringar.layers, keras.layers

    def net(split: bool) -> keras.Model:
        image = x = keras.Input(nets.IMAGE)
        if split:
            x = parts.SplitConv2D(12, 5, strides=2, reads="whole", activation="relu")(x)
            x = parts.SplitConv2D(6, 3, reads="own", activation="relu")(x)
            x = layers.Flatten()(layers.Permute((3, 1, 2))(x))
            x = parts.Gather()(parts.SplitDense(9, reads="all")(x))
        else:
            x = layers.Conv2D(12, 5, strides=2, activation="relu")(x)
            x = layers.Conv2D(6, 3, groups=3, activation="relu")(x)
            x = layers.Dense(9)(layers.Flatten()(layers.Permute((3, 1, 2))(x)))
        return keras.Model(image, x)

    reference = nets.train_whole(seeded(net, False), ADAM(1e-3))
    split = nets.train(seeded(net, True), ADAM(1e-3), grid)
    assert_same_weights(split, reference)
