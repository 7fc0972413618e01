"""examples/alexnet.py, and the normalization layer that it needs."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples.alexnet import alexnet, folder, small_alexnet
from ringar.layers import LocalResponseNormalization
from tests.plugin import JobResult, fast_if, run_job
from tests.plugin.jobs import ROOT

SCRIPT = ROOT / "examples" / "alexnet.py"

COUNTS = {
    "conv1": 34_944,
    "conv2": 307_456,
    "conv3": 885_120,
    "conv4": 663_936,
    "conv5": 442_624,
    "fc6": 37_752_832,
    "fc7": 16_781_312,
    "fc8": 4_097_000,
}


def accuracy(result: JobResult) -> float:
    """Of the held-out images, in percent."""
    match = re.search(r"images/s.*on held-out images ([\d.]+)%", result.check().stdout)
    assert match is not None, result
    return float(match[1])


# --- the net


def test_the_papers_numbers_of_parameters() -> None:
    model = alexnet()
    assert {layer.name: layer.count_params() for layer in model.layers if layer.weights} == COUNTS
    assert model.count_params() == 60_965_224
    assert model.output_shape == (None, 1000)
    for name, side in {"norm1": 55, "norm2": 27, "conv3": 13, "conv5": 13, "pool5": 6}.items():
        assert model.get_layer(name).output.shape[1:3] == (side, side), name


def test_the_papers_initial_weights() -> None:
    model = alexnet(classes=10)
    kernel, bias = model.get_layer("conv2").get_weights()
    assert kernel.std() == pytest.approx(0.01, rel=0.02)
    assert (bias == 1).all()
    for name, value in {"conv1": 0, "conv3": 0, "conv4": 1, "fc6": 1, "fc7": 1, "fc8": 0}.items():
        assert (model.get_layer(name).get_weights()[1] == value).all(), name


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"plan": "half"}, "`plan` must be one of \"whole\", .*Received: plan='half'"),
        ({"plan": "split"}, "`grid` must be given with this plan. Received: plan='split'"),
        ({"initial": "ones"}, '`initial` must be "paper" or "he". Received: initial=\'ones\''),
    ],
)
def test_bad_arguments(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        small_alexnet(**options)


EQUAL = """
import functools, sys
import keras, numpy as np, ringar, tensorflow as tf
from examples.alexnet import alexnet, small_alexnet
from ringar.sharding.cut import cut_of

ringar.init(deadline=60)
plans, parts, jit = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3] == "jit"
grid = ringar.parallel.Grid(model=parts)
rng = np.random.default_rng(0)
batch, steps = 8, 10
x = rng.normal(size=(batch * steps, 8, 8, 1)).astype("float32")
y = rng.integers(0, 12, batch * steps)
data = tf.data.Dataset.from_tensor_slices((x, y))

def net(plan, **options):
    keras.utils.set_random_seed(0)
    return small_alexnet(12, plan=plan, dropout=0.0, **options)

def train(model, optimizer, data, batch, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=jit)
    model.fit(data.batch(batch, drop_remainder=True), verbose=0, **options)

def sgd():
    return keras.optimizers.SGD(0.03, momentum=0.9, weight_decay=5e-3)

@functools.cache
def trained_alone(**groups):
    whole = net("whole", **groups)
    before = whole(x).numpy()
    train(whole, sgd(), data, batch)
    after = whole(x).numpy()
    assert np.abs(after - before).max() > 0.1, "it has learned"
    return before, after, [variable.numpy() for variable in whole.weights]

def part(whole, cut):
    return whole if cut is None else np.split(whole, parts, cut.axis)[grid.part]

for plan in plans:
    groups = {"groups": 1, "normalization_groups": parts} if plan == "all" else {"groups": parts}
    before, after, weights = trained_alone(**groups)
    model = net(plan, grid=grid, **({} if plan == "all" else groups))
    np.testing.assert_allclose(model(x).numpy(), before, atol=1e-5)

    together = grid if plan in ("split", "all") else None
    share = ringar.data.shard(data, grid=together)
    optimizer = ringar.DistributedOptimizer(sgd(), grid=grid)
    own = batch // (grid.data if together else ringar.size())
    train(model, optimizer, share, own, callbacks=[ringar.callbacks.Distributed()])

    assert int(optimizer.iterations) == steps
    np.testing.assert_allclose(model(x).numpy(), after, atol=1e-5, err_msg=plan)
    assert len(model.weights) == len(weights) == 16
    for variable, whole in zip(model.weights, weights):
        expected = part(whole, cut_of(variable))
        np.testing.assert_allclose(variable.numpy(), expected, atol=1e-5, err_msg=variable.path)
"""

HALVES = f"""
counts = {COUNTS}
halves = dict.fromkeys(counts, 2)
dense = {{name: 2 if name.startswith("fc") else 1 for name in counts}}
for plan, shares in (("split", halves), ("hybrid", dense)):
    model = alexnet(plan=plan, grid=grid)
    own = {{layer.name: layer.count_params() for layer in model.layers if layer.weights}}
    assert own == {{name: counts[name] // shares[name] for name in counts}}, (plan, own)
    assert model.output_shape == (None, 1000)
    if plan == "split":
        assert 2 * model.count_params() == 60_965_224
"""


@pytest.mark.job
@pytest.mark.deadline(170)
@pytest.mark.parametrize(
    ("ranks", "parts", "plans", "mode"),
    [
        (2, 2, "split,all,hybrid,whole", "plain"),
        fast_if(False, 2, 2, "split", "jit"),
        fast_if(False, 4, 2, "split,hybrid", "plain"),
    ],
)
def test_parts_hold_half_and_every_plan_trains_as_one_process_does(
    ranks: int, parts: int, plans: str, mode: str
) -> None:
    run_job(ranks, EQUAL + HALVES, args=[plans, str(parts), mode], deadline=150).check()


# --- the script


@pytest.mark.job
@pytest.mark.slow
@pytest.mark.deadline(200)
def test_digits_reach_95_percent() -> None:
    result = run_job(2, SCRIPT, args=["--plan", "split", "--digits"], deadline=180)
    assert accuracy(result) >= 95.0
    assert "Parameters per rank: 80,197, 80,197" in result.stdout


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of 24 images of noise in two classes, of different sizes."""
    rng = np.random.default_rng(0)
    for number in range(24):
        shape = (*rng.integers(30, 60, 2), 3)
        file = tmp_path / f"class{number % 2}" / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        pixels = rng.integers(0, 256, shape, np.uint8)
        file.write_bytes(tf.io.encode_png(pixels).numpy())
    return tmp_path


@pytest.mark.job
@pytest.mark.slow
def test_a_folder_of_images(images: Path) -> None:
    # The callback would say so if the ranks of the model group had got different crops.
    args = ["--plan", "split", "--data", str(images), "--small"]
    args += ["--batch-size", "8", "--epochs", "1", "--steps", "2"]
    result = run_job(2, SCRIPT, args=args)
    assert 0 <= accuracy(result) <= 100
    assert "2/2" in result.stdout


@pytest.mark.slow
@pytest.mark.job
def test_images_of_noise() -> None:
    args = ["--plan", "hybrid", "--synthetic", "--small", "--classes", "10", "--batch-size", "8"]
    result = run_job(2, SCRIPT, args=[*args, "--steps", "3", "--epochs", "2"]).check()
    assert re.search(r"hybrid on 2 ranks: [\d.,]+ images/s, accuracy [\d.]+%\n", result.stdout)


@pytest.mark.slow
@pytest.mark.job
def test_a_batch_that_does_not_go_round() -> None:
    args = ["--plan", "whole", "--synthetic", "--small", "--batch-size", "3"]
    result = run_job(2, SCRIPT, args=args)
    assert result.code not in (0, None), result
    assert "`--batch-size` must be divisible by" in result.stderr
    assert "Received: 3, 2 of them" in result.stderr


def test_crops_and_flips_are_new_in_each_epoch_and_the_same_on_every_rank(images: Path) -> None:
    def epochs(seed: int) -> list[np.ndarray]:
        # As every rank does at its start.
        keras.utils.set_random_seed(seed)
        options = argparse.Namespace(data=str(images), image_size=27, seed=seed)
        train, held_out, shape, classes = folder(options)
        assert (shape, classes, len(held_out)) == ((27, 27, 3), 2, 2)
        return [np.stack([image for image, _ in train]) for _ in range(2)]

    pair, twin = epochs(seed=3), epochs(seed=3)
    np.testing.assert_array_equal(pair, twin)
    first, second = (np.sort(epoch.sum((1, 2, 3))) for epoch in pair)  # whatever their order
    assert not np.allclose(first, second)


# --- the layer


def normalized(a: np.ndarray, radius: int, k: float, alpha: float, beta: float) -> np.ndarray:
    """Section 3.3 of the paper, word by word."""
    count = a.shape[-1]
    b = np.empty_like(a)
    for i in range(count):
        around = slice(max(0, i - radius), min(count - 1, i + radius) + 1)
        b[..., i] = a[..., i] / (k + alpha * (a[..., around] ** 2).sum(-1)) ** beta
    return b


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@pytest.mark.parametrize(
    ("radius", "k", "alpha", "beta"), [(2, 2.0, 1e-4, 0.75), (1, 0.5, 0.3, 0.5), (9, 1.0, 0.1, 1.5)]
)
def test_normalization_is_the_formulas(
    mode: str, radius: int, k: float, alpha: float, beta: float
) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 7)).astype("float32") * 30
    layer = LocalResponseNormalization(radius, k, alpha, beta)
    call: Any = layer
    if mode != "eager":
        call = tf.function(layer, jit_compile=mode == "xla")
    expected = normalized(x, radius, k, alpha, beta)
    np.testing.assert_allclose(call(tf.constant(x)), expected, rtol=2e-6)
    np.testing.assert_allclose(
        tf.nn.local_response_normalization(x, radius, k, alpha, beta), expected, rtol=1e-5
    )


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("beta", [0.75, 1.2])
def test_gradient_is_that_of_finite_differences(groups: int, beta: float) -> None:
    rng = np.random.default_rng(0)
    x, upstream = rng.normal(size=(2, 1, 2, 2, 6)) * 3
    layer = LocalResponseNormalization(1, 1.0, 0.2, beta, groups, dtype="float64")
    variable = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        y = layer(variable)
    gradient = tape.gradient(y, variable, tf.constant(upstream)).numpy()

    def loss(x: np.ndarray) -> float:
        return float((layer(x).numpy() * upstream).sum())

    epsilon = 1e-5
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = epsilon
        difference = (loss(x + step) - loss(x - step)) / (2 * epsilon)
        assert gradient[place] == pytest.approx(difference, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8), (2, 3, 4, 8), (2, 2, 2, 2, 8)])
def test_groups_are_parts(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    result = LocalResponseNormalization(alpha=0.5, groups=4)(x).numpy()
    part = LocalResponseNormalization(alpha=0.5, groups=2)
    expected = np.concatenate([part(half).numpy() for half in np.split(x, 2, -1)], -1)
    # TensorFlow's kernels give other bits for other shapes on some processors.
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert not np.allclose(result, LocalResponseNormalization(alpha=0.5)(x))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_computes_in_float32(policy: str) -> None:
    # The squares are beyond float16.
    x = np.random.default_rng(0).normal(size=(2, 3, 3, 6)).astype("float16") * 1000
    layer = LocalResponseNormalization(dtype=policy)
    y = layer(x)
    assert y.dtype == layer.compute_dtype
    rounded_input = tf.cast(tf.cast(x, layer.compute_dtype), tf.float32).numpy()
    expected = tf.cast(normalized(rounded_input, 2, 2.0, 1e-4, 0.75), layer.compute_dtype)
    step = 2.0**-7 if policy == "mixed_bfloat16" else 2.0**-10
    np.testing.assert_allclose(tf.cast(y, tf.float32), tf.cast(expected, tf.float32), rtol=step)


def test_the_layer_is_saved_and_loaded(tmp_path: Path) -> None:
    images = keras.Input((None, None, 6))
    layer = LocalResponseNormalization(1, 1.5, 0.1, 0.6, groups=2, name="norm")
    model = keras.Model(images, layer(images))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("norm").get_config() == layer.get_config()
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 6)).astype("float32")
    np.testing.assert_array_equal(loaded(x), model(x))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"depth_radius": -1}, "`depth_radius` must be a whole number of at least 0. .*=-1"),
        ({"depth_radius": 1.5}, "`depth_radius` must be a whole number"),
        ({"bias": 0}, "`bias` must be a number above 0. Received: bias=0"),
        ({"alpha": float("nan")}, "`alpha` must be a number of at least 0. Received: alpha=nan"),
        ({"beta": "0.75"}, "`beta` must be a number of at least 0. Received: beta='0.75'"),
        ({"groups": 0}, "`groups` must be a whole number of at least 1. Received: groups=0"),
        ({"groups": True}, "`groups` must be a whole number"),
    ],
)
def test_bad_arguments_of_the_layer(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        LocalResponseNormalization(**options)


def test_maps_that_groups_do_not_divide() -> None:
    text = r"must be divisible by `groups`. Received: input_shape=\(2, 3, 3, 6\), groups=4"
    with pytest.raises(ValueError, match=text):
        LocalResponseNormalization(groups=4)(np.zeros((2, 3, 3, 6), "float32"))
    with pytest.raises(ValueError, match="whose number is known"):
        LocalResponseNormalization()(keras.Input((3, 3, None)))
