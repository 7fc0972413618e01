"""Sharded training is unsharded training, with a part of the optimizer's state on each rank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.sharding import slots
from tests.keras import common, uneven
from tests.plugin import fast_if, run_job

pytestmark = pytest.mark.usefixtures("initialized")

K = keras.optimizers
STEPS = 20
#: The last has fewer elements than ranks.
SHAPES = [(3, 5), (7,), ()]


def without_bias(optimizer: Any) -> Any:
    optimizer.exclude_from_weight_decay(var_names=["1"])
    return optimizer


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: K.SGD(0.1),
    "momentum": lambda: K.SGD(0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda: K.RMSprop(0.01, momentum=0.5, centered=True),
    "Adam": lambda: K.Adam(0.01, amsgrad=True),
    "AdamW": lambda: without_bias(K.AdamW(0.01, weight_decay=0.5)),
    "Adadelta": lambda: K.Adadelta(1.0),
    "Adagrad": lambda: K.Adagrad(0.1),
    "Adamax": lambda: K.Adamax(0.01),
    "Nadam": lambda: K.Nadam(0.01),
    "Ftrl": lambda: K.Ftrl(0.1, l1_regularization_strength=0.01),
    "Lion": lambda: K.Lion(0.01),
    # What Keras does before and after the update.
    "clipnorm": lambda: K.SGD(0.1, clipnorm=0.5),
    "global_clipnorm": lambda: K.SGD(0.1, global_clipnorm=0.5),
    "clipvalue": lambda: K.SGD(0.1, clipvalue=0.5),
    "averages": lambda: K.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
    "accumulation": lambda: K.AdamW(
        0.01, weight_decay=0.1, gradient_accumulation_steps=4, global_clipnorm=0.5
    ),
    "schedule": lambda: K.Adam(K.schedules.CosineDecay(0.1, STEPS)),
}
if hasattr(K, "ScheduleFreeAdamW"):
    OPTIMIZERS["ScheduleFreeAdamW"] = lambda: K.ScheduleFreeAdamW(0.01)
#: Those that are tried in every run of the tests.
FAST = ("RMSprop", "Adam", "AdamW", "Nadam", "Ftrl", "clipnorm", "averages", "accumulation")
#: Whose updates depend on sums over elements, in an order that slices change.
WITH_NORMS = ("clipnorm", "global_clipnorm", "accumulation")
#: Whose updates come to TensorFlow's `rsqrt`, `pow` or reciprocal, as written or as graphs are
#: rewritten. In vectors and at the end of a tensor these give other bits: an element has the bits
#: of its place, with no rank involved.
BY_PLACE = ("Adagrad", "Ftrl", "ScheduleFreeAdamW")


def variables(name: str) -> list[keras.Variable]:
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]
    return [keras.Variable(a, name=f"{name}_{i}") for i, a in enumerate(arrays)]


def sines(weights: list[keras.Variable], factor: float, phase: tf.Tensor) -> list[tf.Tensor]:
    return [tf.sin(v.value * factor + phase) for v in weights]


def trained(
    shard: Any, rank: int, jit: bool, names: Sequence[str], gradients: Callable[..., Any] = sines
) -> dict[str, list[np.ndarray]]:
    """Train variables by each optimizer, all in one graph; return their values."""
    groups = {name: variables(name) for name in names}
    optimizers = {
        name: ringar.DistributedOptimizer(OPTIMIZERS[name](), shard=shard) for name in names
    }
    for name, weights in groups.items():
        optimizers[name].build(weights)

    @tf.function(jit_compile=jit, autograph=False)
    def step(number: tf.Tensor) -> None:
        for name, weights in groups.items():
            optimizers[name].apply(gradients(weights, float(rank + 1), number), weights)

    for number in range(STEPS):
        step(tf.constant(float(number)))
    return {name: [np.array(v.numpy()) for v in weights] for name, weights in groups.items()}


@pytest.mark.parametrize(
    ("stage", "jit", "names"),
    [
        ("optimizer", False, FAST),
        fast_if(False, "gradients", False, tuple(OPTIMIZERS)),
        fast_if(False, "gradients", True, tuple(OPTIMIZERS)),
    ],
)
def test_optimizers_train_as_without_shards(
    stage: str, jit: bool, names: Sequence[str], rank: int, size: int
) -> None:
    expected, received = (trained(shard, rank, jit, names) for shard in (None, stage))
    for name, values in received.items():
        difference = common.largest_difference(values, expected[name])
        exact = size <= 2 and not jit and name not in (*WITH_NORMS, *BY_PLACE)
        assert difference <= (0.0 if exact else 1e-6), name
        assert common.largest_difference(values, [v.numpy() for v in variables(name)]) > 1e-3, name


@pytest.mark.ranks(2, 3, 4)
def test_slices_within_one_host_are_those_of_all_ranks(rank: int, size: int) -> None:
    ways: list[Any] = [None, "host"]
    weights_by_way = {way: variables("host") for way in ways}
    for way, weights in weights_by_way.items():
        optimizer = ringar.DistributedOptimizer(
            K.Adam(0.01, global_clipnorm=0.5), shard="gradients", shard_ranks=way
        )
        for _ in range(2):
            optimizer.apply([tf.sin(v.value * float(rank + 1)) for v in weights], weights)
        assert optimizer._momentums[0].shape == (-(-15 // size),)
    for a, b in zip(*weights_by_way.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def words_model() -> keras.Model:
    """Tables, one of them used twice, that have sparse gradients; a frozen layer; a constraint."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,), dtype="int32")
    hidden = keras.layers.Flatten()(common.TokensAndPositions(5)(inputs))
    hidden = keras.layers.Dense(6, trainable=False)(hidden)
    hidden = keras.layers.BatchNormalization()(hidden)
    outputs = keras.layers.Dense(1, kernel_constraint="max_norm")(hidden)
    return keras.Model(inputs, outputs)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize(
    "options",
    [{}, fast_if(False, {"jit_compile": True}), fast_if(False, {"run_eagerly": True})],
)
def test_fit_with_all_kinds_of_layers(options: dict[str, Any]) -> None:
    of_both = []
    for shard in (None, "gradients"):
        model = words_model()
        # Not Adam: before a BatchNormalization some gradients are rounding errors, which it scales.
        sgd = K.SGD(0.1, momentum=0.9)
        optimizer = ringar.DistributedOptimizer(sgd, shard=shard, bucket_bytes=200)
        model.compile(optimizer, "mse", **options)
        data = common.own_batches(common.tokens(6 * common.GLOBAL_BATCH))
        model.fit(data, verbose=0, callbacks=[ringar.callbacks.Distributed()])
        of_both.append(common.values(model))
    assert common.largest_difference(*of_both) <= 1e-6


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("has_length", [fast_if(False, True), False])
def test_ranks_without_data_train_their_slices(
    has_length: bool, rank: int, size: int, exchange: Callable[[Any], Any]
) -> None:
    batches = uneven.batches_of(size, common.regression)
    of_both = []
    for shard in (None, "optimizer"):
        model = common.dense_model()
        # Not Adam: without shards, a graph whose data has ended counts one more step.
        optimizer = ringar.DistributedOptimizer(K.SGD(0.1, momentum=0.9), shard=shard)
        model.compile(optimizer, "mse")
        data = uneven.dataset(batches[rank], has_length)
        model.fit(data, epochs=2, verbose=0, callbacks=[ringar.callbacks.Distributed()])
        of_both.append(common.values(model))
    assert common.largest_difference(*of_both) <= 1e-6
    steps = 2 * max(map(len, batches))
    assert exchange(common.number(optimizer.iterations)) == [steps] * size
    assert len(set(exchange(of_both[1][0].tobytes()))) == 1


def take_step(model: keras.Model, optimizer: Any, x: tf.Tensor, y: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = keras.losses.MeanSquaredError()(y, model(x, training=True))
    weights = model.trainable_variables
    optimizer.apply(tape.gradient(loss, weights), weights)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("stage", "mode"),
    [
        ("gradients", "graph"),
        fast_if(False, "gradients", "jit"),
        ("weights", "graph"),
        fast_if(False, "weights", "jit"),
        fast_if(False, "weights", "eager"),
    ],
)
def test_join_in_a_loop_of_ones_own(stage: Any, mode: str, rank: int) -> None:
    x, y = common.regression(40)
    of_both = []
    for shard in (None, stage):
        model = common.dense_model()
        optimizer = ringar.DistributedOptimizer(K.Adam(0.01), shard=shard)
        optimizer.build(model.trainable_variables)  # compiled code makes no variables
        step: Any = functools.partial(take_step, model, optimizer)
        if mode != "eager":
            step = tf.function(step, jit_compile=mode == "jit")
        for number in range(5 if rank == 0 else 2):
            part = slice(8 * number, 8 * number + 8)
            step(tf.constant(x[part]), tf.constant(y[part]))
        assert ringar.join(optimizer) == (0 if rank == 0 else 3)
        assert common.number(optimizer.iterations) == 5
        of_both.append(common.values(model))
    assert common.largest_difference(*of_both) <= 1e-6


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.usefixtures("mixed_float16")
@pytest.mark.parametrize("stage", ["gradients", "weights"])
@pytest.mark.parametrize("inside", [False, fast_if(False, True)])
def test_overflow_on_one_rank_skips_the_step_on_all(
    inside: bool, stage: Any, rank: int, size: int
) -> None:
    x, y = common.regression(8)
    overflowing = np.full_like(y, 1e30) if rank == size - 1 else y
    of_both = []
    for shard in (None, stage):
        model = common.dense_model()
        optimizer = K.LossScaleOptimizer(K.Adam(0.01)) if inside else K.Adam(0.01)
        model.compile(ringar.DistributedOptimizer(optimizer, shard=shard), "mse")
        for target in (y, overflowing, y):
            model.fit(tf.data.Dataset.from_tensors((x, target)), verbose=0)
        assert common.number(model.optimizer.dynamic_scale) == 2.0**14
        assert common.number(model.optimizer.inner_optimizer.iterations) == 2
        of_both.append(common.values(model))
    assert common.largest_difference(*of_both) <= 1e-6


def test_slots_are_those_of_a_slice(size: int) -> None:
    optimizer = ringar.DistributedOptimizer(K.Adam(0.01), shard="optimizer")
    weights = variables("slots")
    optimizer.build(weights)
    lengths = [-(-int(np.prod(shape)) // size) for shape in SHAPES]
    expected = SHAPES if size == 1 else [(length,) for length in lengths]
    assert [tuple(v.shape) for v in optimizer._momentums] == expected
    assert [common.number(v) for v in slots.common(optimizer)[:1]] == [0]


@pytest.mark.parametrize("name", ["Lamb", "Adafactor", "Muon", "MultiOptimizer"])
def test_optimizers_that_need_whole_variables_are_refused_by_name(name: str) -> None:
    if not hasattr(K, name):
        pytest.skip(f"this Keras has no {name}")
    options: Any = ([K.SGD(0.1)],) if name == "MultiOptimizer" else ()

    class Derived(getattr(K, name)):  # type: ignore[misc]
        pass

    if name == "MultiOptimizer":
        options = (lambda variable: K.SGD(0.1),)
    with pytest.raises(ValueError, match=f"treat each element by itself.*: {name} "):
        ringar.DistributedOptimizer(Derived(*options), shard="optimizer")


def test_bad_arguments() -> None:
    def make(**options: Any) -> None:
        ringar.DistributedOptimizer("adam", **{"shard": "optimizer", **options})

    with pytest.raises(ValueError, match='`shard` must be None, "optimizer", "gradients" or "w'):
        make(shard="all")
    with pytest.raises(ValueError, match="`shard_ranks` needs `shard`"):
        make(shard=None, shard_ranks="host")
    with pytest.raises(ValueError, match='`shard_ranks` must be None or "host"'):
        make(shard_ranks="rack")
    for changes in ({"shard_ranks": "host"}, {"offload": "disk"}):
        with pytest.raises(ValueError, match='must be None with shard="weights"'):
            make(shard="weights", **changes)
    with pytest.raises(ValueError, match="`compression` must be none, fp16 or bf16"):
        make(compression=ringar.Compression.powersgd(rank=2))
    with pytest.raises(ValueError, match="`algorithm` must be None"):
        make(algorithm="ring")


RANKS_DIFFER = """
import keras, ringar
from tests.keras import common
ringar.init()
model = common.dense_model()
shard = [{first}, {second}][ringar.rank()]
model.compile(ringar.DistributedOptimizer("adam", shard=shard), "mse")
data = common.own_batches(common.regression(48))
try:
    model.fit(data, verbose=0, callbacks=[ringar.callbacks.Distributed()])
except ValueError as error:
    assert "the same exchange.shard on every rank; received opt" in str(error), error
else:
    raise AssertionError("no error")
model.compile(ringar.DistributedOptimizer("adam", shard=shard), "mse")
try:  # without the callback
    model.fit(data, verbose=0)
except Exception as error:
    assert 'allreduce "gradients/shard="gradients""' in str(error), error
else:
    raise AssertionError("no error")
"""


@pytest.mark.job
def test_ranks_that_differ_get_an_error_on_all() -> None:
    program = RANKS_DIFFER.format(first='"optimizer"', second='"gradients"')
    run_job(2, program).check()
