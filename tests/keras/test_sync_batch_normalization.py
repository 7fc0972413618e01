"""N ranks with parts of a batch, equal or not, do what BatchNormalization does with the whole one.

Every rank knows the whole batch and computes what is expected by itself, with Keras' layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.keras import batch_normalization
from ringar.layers import Gather, SplitDense, SyncBatchNormalization
from ringar.sharding.cut import cut_of
from tests import one_process
from tests.keras import common
from tests.plugin import fast_if, run_job

pytestmark = pytest.mark.usefixtures("initialized")
several_ranks = pytest.mark.ranks(2, 3, 4)

TOLERANCE = 1e-5
STEPS = 10
WAYS = ["eager", "graph", "compiled"]


@dataclass(frozen=True)
class Case:
    """A batch, of which each rank gets some of the examples."""

    shape: tuple[int, ...]  # of an example
    axis: int = -1
    rows: tuple[int, ...] = (1, 2, 3, 4)  # of each rank
    mask: bool = False
    dtype: str = "float32"

    def batch(self, size: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Examples whose channels differ, a mask, and the gradient of the outputs."""
        rng = np.random.default_rng(5)
        shape = (sum(self.rows[:size]), *self.shape)
        channels = np.arange(shape[self.axis], dtype=np.float32)
        along = [1] * len(shape)
        along[self.axis] = -1
        x = rng.normal(size=shape) * (1 + channels.reshape(along)) + 3 * channels.reshape(along)
        mask = rng.random(shape[:-1]) < 0.6 if self.mask else None
        return x.astype(np.float32), mask, rng.normal(size=shape).astype(np.float32)

    def part(self, array: Any, size: int, rank: int) -> Any:
        """This rank's examples."""
        if array is None:
            return None
        return np.split(array, np.cumsum(self.rows[:size])[:-1])[rank]


CASES = {
    "dense": Case((6,)),
    "equal": Case((6,), rows=(3, 3, 3, 3)),
    "none": Case((6,), rows=(3, 0, 2, 0)),
    "none_on_first": Case((3, 2), rows=(0, 4, 0, 1)),
    "images": Case((5, 4, 3)),
    "channels_first": Case((3, 5, 4), axis=1),
    "negative_axis": Case((3, 5, 4), axis=-3),
    "one_channel": Case((4, 1)),
    "sequences": Case((7, 3)),
    "mask": Case((7, 3), mask=True),
    "mask_none": Case((7, 3), rows=(2, 0, 3, 1), mask=True),
    "mask_channels_first": Case((3, 5, 4), axis=1, mask=True),
    "float64": Case((6,), dtype="float64"),
    "mixed_float16": Case((5, 4, 3), dtype="mixed_float16"),
    "mixed_bfloat16": Case((5, 4, 3), dtype="mixed_bfloat16"),
    "float16": Case((6,), dtype="float16"),
}
# Compiling takes a second.
IN_GRAPHS = {
    "graph": ("none", "channels_first", "mixed_bfloat16"),
    "compiled": ("dense", "mask", "mixed_float16"),
}
RUNS = [
    fast_if(way == "eager" or name in IN_GRAPHS[way], name, way)
    for name in CASES
    for way in WAYS
    if way == "eager" or any(name in names for names in IN_GRAPHS.values())
]
# Of what comes out in these dtypes; statistics and the gradients of variables are as in float32.
ROUNDING = {"mixed_float16": 5e-3, "mixed_bfloat16": 4e-2, "float16": 5e-3}


def step(
    layer: Any, x: np.ndarray, mask: np.ndarray | None, upstream: np.ndarray, way: str = "eager"
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Outputs, gradient of the inputs, gradients of gamma and beta, in training.

    The loss is a sum over the examples: that of the whole batch is the sum over its parts.
    """
    layer.build((None, *x.shape[1:]))
    dtype = layer.compute_dtype

    def forward_and_backward(x: tf.Tensor, upstream: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True, **({} if mask is None else {"mask": tf.constant(mask)}))
            loss = tf.reduce_sum(tf.cast(y, upstream.dtype) * upstream)
        sources = [x, *(v.value for v in layer.trainable_variables)]
        return y, tape.gradient(loss, sources)

    run = forward_and_backward
    if way != "eager":
        run = tf.function(run, jit_compile=way == "compiled")
    y, (of_x, *of_weights) = run(tf.cast(x, dtype), tf.constant(upstream))
    return as_array(y), as_array(of_x), [as_array(g) for g in of_weights]


def as_array(tensor: tf.Tensor) -> np.ndarray:
    return np.asarray(tf.cast(tensor, tf.float64))


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float = TOLERANCE) -> None:
    """To `tolerance`, of the largest that is expected if that is more than 1."""
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)


@several_ranks
@pytest.mark.parametrize(("name", "way"), RUNS)
def test_parts_equal_the_whole_batch(
    name: str, way: str, rank: int, size: int, exchange: Callable[[Any], Any]
) -> None:
    case = CASES[name]
    batch = case.batch(size)
    reference = keras.layers.BatchNormalization(case.axis, dtype=case.dtype)
    y, of_x, of_weights = step(reference, *batch)

    layer = SyncBatchNormalization(case.axis, dtype=case.dtype, name="bn")
    x, mask, upstream = (case.part(array, size, rank) for array in batch)
    my_y, my_of_x, my_of_weights = step(layer, x, mask, upstream, way)

    rounding = ROUNDING.get(case.dtype, TOLERANCE)
    assert_close(my_y, case.part(y, size, rank), rounding)
    assert_close(my_of_x, case.part(of_x, size, rank), rounding)
    weights_rounding = TOLERANCE if case.dtype != "float16" else rounding
    for result, expected in zip(my_of_weights, of_weights, strict=True):
        assert_close(sum(exchange(result)), expected, weights_rounding)
    for result, other in zip(moving(layer), moving(reference), strict=True):
        assert_close(result, other, weights_rounding)
    assert len(set(exchange(b"".join(v.tobytes() for v in moving(layer))))) == 1


def moving(layer: Any) -> list[np.ndarray]:
    return [keras.ops.convert_to_numpy(v) for v in (layer.moving_mean, layer.moving_variance)]


@several_ranks
@pytest.mark.parametrize("mask", [False, True], ids=["", "mask"])
def test_no_examples_anywhere_is_no_nan(mask: bool, rank: int) -> None:
    rows = 3 if mask else 0  # all of them masked
    x = np.full((rows, 4, 2), 5.0, np.float32)
    none = np.zeros((rows, 4), bool) if mask else None
    layer = SyncBatchNormalization()
    results = step(layer, x, none, np.ones_like(x))
    for array in (*results[:2], *results[2], *moving(layer)):
        assert np.isfinite(array).all()


@several_ranks
def test_masked_values_that_are_no_numbers_do_not_count(rank: int) -> None:
    x = np.full((2, 2, 3), float(rank), np.float32)
    x[:, 1] = np.nan
    mask = np.array([[True, False]] * 2)
    layer = SyncBatchNormalization()
    step(layer, x, mask, np.ones_like(x))
    assert all(np.isfinite(value).all() for value in moving(layer))


@several_ranks
def test_large_means_do_not_cancel(rank: int, size: int) -> None:
    """Sums of x and of x^2, in float32, would give a variance of 0 or of hundreds."""
    rng = np.random.default_rng(0)
    batch = (rng.normal(size=(12, 4)) + 1e4).astype(np.float32)
    layer = SyncBatchNormalization(momentum=0.0)
    layer(np.split(batch, size)[rank], training=True)
    np.testing.assert_allclose(moving(layer)[1], batch.astype(np.float64).var(axis=0), rtol=1e-3)


@several_ranks
@pytest.mark.parametrize("jit", [False, True], ids=["plain", "jit"])
def test_fit_equals_one_process(jit: bool, rank: int, exchange: Callable[[Any], Any]) -> None:
    sgd = keras.optimizers.SGD
    check_fit(lambda: sgd(0.1, momentum=0.9), jit, TOLERANCE, rank, exchange)


@several_ranks
@pytest.mark.usefixtures("mixed_float16")
def test_fit_in_mixed_precision_equals_one_process(
    rank: int, exchange: Callable[[Any], Any]
) -> None:
    # float16 rounds gradients otherwise for the whole batch than for its parts. From the scale that
    # Keras begins with, those of the parts overflow more often, whose loss is a mean over less.
    def optimizer() -> Any:
        sgd = keras.optimizers.SGD(0.002, momentum=0.9)
        return keras.optimizers.LossScaleOptimizer(sgd, initial_scale=256.0)

    check_fit(optimizer, False, 1e-4, rank, exchange)


def check_fit(
    optimizer: Callable[[], Any],
    jit: bool,
    tolerance: float,
    rank: int,
    exchange: Callable[[Any], Any],
) -> None:
    """Train in one process and in all; weights here are the moving averages, too."""
    data = common.regression(STEPS * common.GLOBAL_BATCH)
    expected, start = None, None
    if rank == 0:
        model = net(keras.layers.BatchNormalization, 0)
        start = common.values(model)
        model.compile(optimizer(), "mse", jit_compile=jit)
        model.fit(common.batches(data), verbose=0)
        expected = common.values(model)

    model = net(SyncBatchNormalization, rank)
    model.compile(ringar.DistributedOptimizer(optimizer()), "mse", jit_compile=jit)
    model.fit(common.own_batches(data), verbose=0, callbacks=[ringar.callbacks.Distributed()])

    assert len(set(exchange(common.digest(model)))) == 1, "the ranks hold other weights"
    if expected is not None and start is not None:
        for value, other, before in zip(common.values(model), expected, start, strict=True):
            np.testing.assert_allclose(value, other, rtol=0, atol=tolerance)
            # The comparison would see a step, or statistics, that are wrong.
            assert before.size < 5 or np.abs(other - before).max() > 5 * tolerance


def net(normalization: Callable[[], Any], seed: int) -> keras.Model:
    """Two layers, both normalized, initialized from `seed`."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, use_bias=False),
            normalization(),
            keras.layers.Activation("tanh"),
            keras.layers.Dense(5, use_bias=False),
            normalization(),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )


@several_ranks
def test_ranks_outside_a_process_set_have_statistics_of_their_own(rank: int, size: int) -> None:
    first = ringar.add_process_set([0, 1])
    singletons = [ringar.add_process_set([r]) for r in range(2, size)]
    layer = SyncBatchNormalization(momentum=0.0, process_set=[first, first, *singletons][rank])
    layer(np.full((rank + 1, 2), rank, np.float32), training=True)
    np.testing.assert_allclose(moving(layer)[0], 2 / 3 if rank < 2 else rank, rtol=1e-6)
    for process_set in (first, *singletons):
        ringar.remove_process_set(process_set)


@pytest.fixture
def gathered_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names under which layers have gathered statistics."""
    names: list[str] = []

    def note(tensor: Any, *, name: str, process_set: Any) -> Any:
        names.append(name)
        return ringar.allgather(tensor, name=name, process_set=process_set)

    monkeypatch.setattr(batch_normalization, "allgather", note)
    return names


def test_sends_once_per_step_in_training_only(gathered_names: list[str], size: int) -> None:
    layer = SyncBatchNormalization(name="bn")
    x = np.ones((2, 3), np.float32)
    layer(x)
    layer(x, training=False)
    assert gathered_names == []
    layer(x, training=True)
    assert gathered_names == (["bn/statistics"] if size > 1 else [])
    layer.trainable = False
    layer(x, training=True)
    assert len(gathered_names) <= 1


def test_config_makes_the_same_layer_again() -> None:
    layer = SyncBatchNormalization(
        1,
        momentum=0.9,
        epsilon=1e-4,
        scale=False,
        beta_initializer="ones",
        process_set=ringar.global_process_set,
        name="bn",
    )
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(again) is SyncBatchNormalization
    assert again.get_config() == layer.get_config()
    assert again.process_set is None
    assert (again.axis, again.momentum, again.scale, again.name) == (1, 0.9, False, "bn")


def test_takes_the_config_of_keras_layer_and_gives_one() -> None:
    plain = keras.layers.BatchNormalization(momentum=0.8, name="bn")
    layer = SyncBatchNormalization.from_config(plain.get_config())
    assert keras.layers.BatchNormalization.from_config(layer.get_config()).get_config() == (
        plain.get_config()
    )


@pytest.mark.parametrize("option", ["renorm", "synchronized"])
def test_refuses(option: str) -> None:
    options: dict[str, Any] = {option: True}
    text = f"`{option}` must be False in SyncBatchNormalization: .* Received: {option}=True"
    with pytest.raises(ValueError, match=text):
        SyncBatchNormalization(-1, **options)


def test_refuses_a_keras_that_would_not_ask_for_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(keras.layers.BatchNormalization, "_moments")
    with pytest.raises(ringar.errors.UnsupportedError, match="expected a Keras whose .* received"):
        SyncBatchNormalization()


# A process that has loaded ringar for its layers, and has no job: it predicts, and cannot train.
PLAIN_PROCESS = """
import sys
import keras, numpy as np
import ringar
import ringar.layers
file, inputs, outputs = sys.argv[1:]
model = keras.models.load_model(file)
x = np.load(inputs)
np.save(outputs, model.predict(x, verbose=0))
for train in (
    lambda: model(x, training=True),
    lambda: model.fit(x, np.ones((len(x), 1)), verbose=0),
):
    try:
        train()
    except ringar.errors.NotInitializedError as error:
        assert "expected ringar.init() before training" in str(error), error
    else:
        raise AssertionError("trained without ringar.init()")
"""


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_saved_model_predicts_in_a_plain_process_and_trains_on(
    rank: int, shared_tmp_path: Path, exchange: Callable[[Any], Any]
) -> None:
    model = net(SyncBatchNormalization, rank)
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mean_squared_error")
    data = common.regression(2 * common.GLOBAL_BATCH)
    fit: dict[str, Any] = {"verbose": 0, "callbacks": [ringar.callbacks.Distributed()]}
    model.fit(common.own_batches(data), **fit)
    file = shared_tmp_path / "model.keras"
    expected = model.predict(data[0][:5], verbose=0)
    if rank == 0:
        model.save(file)
        inputs, outputs = file.with_name("inputs.npy"), file.with_name("outputs.npy")
        np.save(inputs, data[0][:5])
        run_job(None, PLAIN_PROCESS, args=[str(path) for path in (file, inputs, outputs)]).check()
        np.testing.assert_allclose(np.load(outputs), expected, atol=1e-6)
    exchange("saved")

    loaded = keras.models.load_model(file)
    assert sum(isinstance(x, SyncBatchNormalization) for x in loaded.layers) == 2
    np.testing.assert_array_equal(loaded.predict(data[0][:5], verbose=0), expected)
    loaded.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    loaded.fit(common.own_batches(data), **fit)
    assert len(set(exchange(common.digest(loaded)))) == 1


@pytest.fixture
def grid() -> Iterator[ringar.parallel.Grid]:
    """Two groups of two parts."""
    grid = ringar.parallel.Grid(data=2, model=2)
    yield grid
    grid.close()


on_a_grid = pytest.mark.ranks(4)


@on_a_grid
@pytest.mark.parametrize("way", WAYS)
def test_on_a_grid_parts_have_statistics_of_their_own(
    way: str, grid: ringar.parallel.Grid, exchange: Callable[[Any], Any]
) -> None:
    case = Case((5, 8), rows=(2, 3))
    x, _, upstream = case.batch(grid.data)
    parts = [np.split(array, grid.model, -1)[grid.part] for array in (x, upstream)]
    reference = keras.layers.BatchNormalization()
    y, of_x, of_weights = step(reference, parts[0], None, parts[1])

    layer = SyncBatchNormalization(grid=grid)
    x, upstream = (case.part(array, grid.data, grid.group) for array in parts)
    my_y, my_of_x, my_of_weights = step(layer, x, None, upstream, way)
    assert_close(my_y, case.part(y, grid.data, grid.group))
    assert_close(my_of_x, case.part(of_x, grid.data, grid.group))
    of_ranks = exchange(my_of_weights)
    for i, expected in enumerate(of_weights):
        assert_close(sum(of_ranks[r][i] for r in grid.data_set.ranks), expected)
    for statistic, other in zip(moving(layer), moving(reference), strict=True):
        assert_close(statistic, other)
    assert all(cut_of(v).grid is grid for v in layer.variables)  # type: ignore[union-attr]


def split_net(**options: Any) -> keras.Model:
    """Normalized where it is split, and where every rank has all units."""
    keras.utils.set_random_seed(3)
    image = x = keras.Input((6,))
    x = SplitDense(8, reads="whole", name="first")(x)
    x = SyncBatchNormalization(name="of_parts", **options)(x)
    x = keras.layers.Activation("tanh")(x)
    x = Gather(name="join")(x)
    x = SyncBatchNormalization(name="of_all")(x)
    return keras.Model(image, keras.layers.Dense(1, name="last")(x))


def whole_net() -> keras.Model:
    keras.utils.set_random_seed(3)
    image = x = keras.Input((6,))
    x = keras.layers.Dense(8, name="first")(x)
    x = keras.layers.BatchNormalization(name="of_parts")(x)
    x = keras.layers.Activation("tanh")(x)
    x = keras.layers.BatchNormalization(name="of_all")(x)
    return keras.Model(image, keras.layers.Dense(1, name="last")(x))


@on_a_grid
@pytest.mark.parametrize("jit", [False, fast_if(False, True)], ids=["plain", "jit"])
def test_fit_on_a_grid_equals_one_process(
    jit: bool, grid: ringar.parallel.Grid, exchange: Callable[[Any], Any]
) -> None:
    data = common.regression(STEPS * common.GLOBAL_BATCH)
    model = split_net()
    assert model.get_layer("of_parts").grid is grid
    assert model.get_layer("of_all").grid is None
    single = whole_net()
    for weight, other in zip(model.weights, single.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), part_of(other, weight))
    single.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", jit_compile=jit)
    one_process.fit(single, common.batches(data))

    optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), grid=grid)
    model.compile(optimizer, "mse", jit_compile=jit)
    examples = ringar.data.shard(tf.data.Dataset.from_tensor_slices(data), grid=grid)
    batches = examples.batch(common.GLOBAL_BATCH // grid.data, drop_remainder=True)
    model.fit(batches, verbose=0, callbacks=[ringar.callbacks.Distributed()])

    for weight, other in zip(model.weights, single.weights, strict=True):
        expected = part_of(other, weight)
        np.testing.assert_allclose(weight.numpy(), expected, atol=TOLERANCE, err_msg=weight.path)
    digests = exchange(common.digest(model))
    assert digests[: grid.model] == digests[grid.model :], "the groups hold other weights"


def part_of(variable: Any, weight: Any) -> np.ndarray:
    """What this rank has of a variable of the whole net."""
    cut = cut_of(weight)
    value = variable.numpy()
    return value if cut is None else np.split(value, cut.grid.model, cut.axis)[cut.grid.part]


@on_a_grid
def test_refuses_what_does_not_go_with_the_grid(grid: ringar.parallel.Grid) -> None:
    with pytest.raises(ValueError, match="`process_set` must be None with `grid`"):
        SyncBatchNormalization(process_set=grid.data_set, grid=grid)
    split = SplitDense(8, reads="whole")(keras.Input((6,)))
    with pytest.raises(
        ValueError, match="`grid` must be None for channels that every rank has whole"
    ):
        SyncBatchNormalization(grid=grid)(Gather()(split))
    images = keras.layers.Reshape((1, 6))(keras.Input((6,)))
    with pytest.raises(ValueError, match="`axis` must be that of the channels"):
        SyncBatchNormalization(1)(SplitDense(8, reads="whole")(images))
