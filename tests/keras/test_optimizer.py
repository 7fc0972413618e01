"""DistributedOptimizer: what it is, what it reduces, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.keras.apply import DistributedMixin
from tests.keras import common
from tests.plugin import run_job

pytestmark = pytest.mark.usefixtures("initialized")

SGD = keras.optimizers.SGD


def test_is_the_optimizer_that_it_was() -> None:
    adam = keras.optimizers.Adam(0.125, beta_1=0.5, clipnorm=1.0)
    config = adam.get_config()
    optimizer = ringar.DistributedOptimizer(adam)
    assert optimizer is adam
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert isinstance(optimizer, DistributedMixin)
    assert type(optimizer).__name__ == "DistributedAdam"
    assert adam.get_config() == config


def test_name_of_an_optimizer() -> None:
    assert isinstance(ringar.DistributedOptimizer("adam"), keras.optimizers.Adam)


def test_built_optimizer_keeps_its_state() -> None:
    model = common.dense_model()
    model.compile(SGD(0.1, momentum=0.9), "mse")
    model.fit(*common.regression(48), batch_size=24, verbose=0)
    before = [np.array(v) for v in model.optimizer.variables]
    assert before[0] == 2
    optimizer = ringar.DistributedOptimizer(model.optimizer)
    for variable, value in zip(optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    model.compile(optimizer, "mse")
    model.fit(*common.regression(48), batch_size=24, verbose=0)
    assert optimizer.iterations == 4


def test_what_a_config_does_not_hold_is_kept() -> None:
    class Halving(keras.optimizers.schedules.LearningRateSchedule):  # has no get_config
        def __call__(self, step: Any) -> Any:
            return 0.5 ** keras.ops.cast(step, "float32")

    adamw = keras.optimizers.AdamW(Halving(), weight_decay=0.5)
    adamw.exclude_from_weight_decay(var_names=["bias"])
    optimizer = ringar.DistributedOptimizer(adamw)
    model = common.dense_model()
    model.compile(optimizer, "mse")
    model.fit(*common.regression(24), batch_size=24, verbose=0)
    assert common.number(optimizer.learning_rate) == 0.5
    excluded = [not optimizer._use_weight_decay(v) for v in model.trainable_variables]
    assert excluded == [False, True, False, True]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda: ringar.DistributedOptimizer(SGD()),
        lambda: keras.optimizers.LossScaleOptimizer(ringar.DistributedOptimizer(SGD())),
    ],
)
def test_wrapping_twice_is_an_error(wrap: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="must not be distributed already"):
        ringar.DistributedOptimizer(wrap())


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"`op` must be"):
        ringar.DistributedOptimizer(SGD(), op=ringar.Max)
    with pytest.raises(ValueError, match=r"`bucket_bytes` must be"):
        ringar.DistributedOptimizer(SGD(), bucket_bytes=0)
    with pytest.raises(ValueError, match="optimizer identifier"):
        ringar.DistributedOptimizer(3)
    with pytest.raises(ValueError, match=r"`algorithm` must be"):
        ringar.DistributedOptimizer(SGD(), algorithm="tree")
    with pytest.raises(ValueError, match=r"`compression` must be"):
        ringar.DistributedOptimizer(SGD(), compression="fp16")  # type: ignore[arg-type]


@pytest.mark.job
def test_before_init() -> None:
    result = run_job(
        None,
        """
        import keras, ringar
        ringar.DistributedOptimizer(keras.optimizers.SGD())
        """,
    )
    assert result.code == 1
    assert "NotInitializedError" in result.stderr
    assert "call ringar.init()" in result.stderr


@pytest.mark.parametrize("op", ["average", "sum"])
@pytest.mark.parametrize("bucket_bytes", [1, 100, 2**20])
def test_apply_reduces(op: str, bucket_bytes: int, rank: int, size: int) -> None:
    variables = [keras.Variable(np.zeros(shape, "float32")) for shape in [(3,), (2, 5), (), (7,)]]
    optimizer = ringar.DistributedOptimizer(
        SGD(1.0),
        op={"average": ringar.Average, "sum": ringar.Sum}[op],
        bucket_bytes=bucket_bytes,
    )
    optimizer.apply([tf.fill(v.shape, float(rank + i)) for i, v in enumerate(variables)], variables)
    for i, variable in enumerate(variables):
        total = sum(r + i for r in range(size))
        expected = -total / size if op == "average" else -total
        np.testing.assert_allclose(variable, np.full(variable.shape, expected, "float32"))


def test_compression_and_factors(rank: int, size: int) -> None:
    variable = keras.Variable(np.zeros(3, "float32"))
    optimizer = ringar.DistributedOptimizer(
        SGD(1.0),
        op=ringar.Sum,
        compression=ringar.Compression.fp16,
        prescale_factor=0.5,
        postscale_factor=4.0,
    )
    optimizer.apply([tf.fill([3], float(rank + 1))], [variable])
    np.testing.assert_array_equal(variable, -2.0 * sum(r + 1 for r in range(size)))


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({}, " postscale=0.5 shares="),
        ({"compression": ringar.Compression.fp16}, " wire=float16 shares="),
        ({"compression": ringar.Compression.bf16}, " wire=bfloat16 shares="),
        ({"algorithm": "ring"}, " algorithm=ring shares="),
    ],
)
def test_collectives_are_told(options: dict[str, Any], phrase: str) -> None:
    variable = keras.Variable(np.zeros(3, "float32"))
    optimizer = ringar.DistributedOptimizer(SGD(1.0), **options)
    optimizer.build([variable])
    step = tf.function(lambda gradient: optimizer.apply([gradient], [variable]))
    graph = step.get_concrete_function(tf.TensorSpec([3], tf.float32)).graph
    (call,) = (op for op in graph.get_operations() if "Ringar" in op.type)
    assert phrase in call.get_attr("spec").decode()
    assert call.inputs[0].dtype == tf.float32


@pytest.mark.parametrize("op", ["average", "sum"])
def test_gradient_of_unknown_rank(op: str, rank: int, size: int) -> None:
    variables = [keras.Variable(np.zeros(shape, "float32")) for shape in [(2, 3), (4,)]]
    of_ops = {"average": ringar.Average, "sum": ringar.Sum}
    optimizer = ringar.DistributedOptimizer(SGD(1.0), op=of_ops[op])
    optimizer.build(variables)
    step = tf.function(lambda gradient: optimizer.apply([gradient, tf.ones([4])], variables))
    step.get_concrete_function(tf.TensorSpec(None, tf.float32))(tf.fill([2, 3], float(rank)))
    factor = size if op == "sum" else 1
    np.testing.assert_allclose(variables[0], np.full((2, 3), -factor * (size - 1) / 2))
    np.testing.assert_allclose(variables[1], np.full(4, -factor))


def test_mixed_dtypes_and_none(rank: int, size: int) -> None:
    dtypes = ["float32", "float16", "float64", "float32"]
    variables = [keras.Variable(np.zeros(2), dtype=dtype) for dtype in dtypes]
    grads = [tf.fill([2], tf.cast(rank, dtype)) for dtype in dtypes]
    grads[0] = None
    ringar.DistributedOptimizer(SGD(1.0)).apply(grads, variables)
    np.testing.assert_array_equal(variables[0], 0)
    for variable in variables[1:]:
        np.testing.assert_array_equal(variable, -(size - 1) / 2)


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(as_dense: bool, rank: int, size: int) -> None:
    table = keras.Variable(np.zeros((size + 1, 2), "float32"))
    # Rank r touches row r twice and the last row once; ranks differ in their number of slices.
    rows = [rank, rank, size] + [size] * rank
    slices = tf.IndexedSlices(
        tf.ones([len(rows), 2]), tf.constant(rows), tf.constant([size + 1, 2])
    )
    optimizer = ringar.DistributedOptimizer(SGD(1.0), sparse_as_dense=as_dense)
    optimizer.apply([slices], [table])
    last = sum(1 + r for r in range(size))
    expected = np.array([[2.0, 2.0]] * size + [[last, last]]) / size
    np.testing.assert_allclose(table, -expected, rtol=1e-6)


@pytest.mark.skipif(
    not hasattr(SGD, "_overwrite_variables_directly_with_gradients"),
    reason="this Keras has no such variables",
)
def test_overwriting_gradients_are_combined_by_maximum(rank: int, size: int) -> None:
    scale, weight = keras.Variable(np.zeros(2, "float32")), keras.Variable(np.zeros(2, "float32"))
    scale.overwrite_with_gradient = True
    optimizer = ringar.DistributedOptimizer(SGD(1.0))
    optimizer.apply(
        [tf.constant([rank, -rank], "float32"), tf.fill([2], float(rank))], [scale, weight]
    )
    np.testing.assert_array_equal(scale, [size - 1, 0])
    np.testing.assert_array_equal(weight, -(size - 1) / 2)


def test_clipping_sees_reduced_gradients(rank: int, size: int) -> None:
    variable = keras.Variable(np.zeros(1, "float32"))
    optimizer = ringar.DistributedOptimizer(SGD(1.0, global_clipnorm=1.0), op=ringar.Sum)
    # Each is within the norm alone; together they are not.
    optimizer.apply([tf.constant([0.75])], [variable])
    assert common.number(variable[0]) == (-0.75 if size == 1 else -1.0)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("jit", [False, True], ids=["plain", "jit"])
def test_gradient_that_is_none_on_one_rank_is_an_error_on_all(jit: bool, rank: int) -> None:
    variables = [keras.Variable(np.zeros(3, "float32")) for _ in range(4)]
    optimizer = ringar.DistributedOptimizer(SGD(1.0))
    optimizer.build(variables)

    @tf.function(jit_compile=jit)
    def step() -> None:
        grads = [tf.ones([3]) for _ in variables]
        grads[1 if rank == 0 else 2] = None
        optimizer.apply(grads, variables)

    # All ranks send three gradients of one shape: only the names tell them apart.
    with pytest.raises(tf.errors.OpError) as error:
        step()
    for rank_says in ('"gradients/bucket_0:3-2,0"', '"gradients/bucket_0:3,1-0"'):
        assert rank_says in str(error.value)


@pytest.mark.ranks(4)
def test_process_sets_train_apart(rank: int) -> None:
    sets = [ringar.add_process_set([0, 1]), ringar.add_process_set([2, 3])]
    variable = keras.Variable(np.zeros(1, "float32"))
    optimizer = ringar.DistributedOptimizer(SGD(1.0), process_set=sets[rank // 2])
    optimizer.apply([tf.constant([float(rank)])], [variable])
    assert common.number(variable[0]) == (-0.5 if rank < 2 else -2.5)
    for process_set in sets:
        ringar.remove_process_set(process_set)


@pytest.mark.ranks(2)
def test_buckets_leave_last_layer_first(rank: int) -> None:
    variables = [keras.Variable(np.zeros(4, "float32")) for _ in range(6)]
    optimizer = ringar.DistributedOptimizer(SGD(1.0), bucket_bytes=32)
    optimizer.build(variables)

    @tf.function
    def step() -> None:
        optimizer.apply([tf.ones([4]) for _ in variables], variables)

    graph = step.get_concrete_function().graph
    specs = [op.get_attr("spec").decode() for op in graph.get_operations() if "Ringar" in op.type]
    names = [spec.split("name=")[1] for spec in specs]
    assert names == [f"gradients/bucket_{i}:{5 - 2 * i}-{4 - 2 * i}" for i in range(3)]


@pytest.mark.ranks(1)
def test_keras_2_is_refused_by_name() -> None:
    optimizer, model = (type(name, (), {"__module__": "tf_keras.src"})() for name in ("SGD", "Net"))
    with pytest.raises(ringar.errors.UnsupportedError, match=r"Distributed.*SGD of tf_keras.*Tape"):
        ringar.DistributedOptimizer(optimizer)
    with pytest.raises(ringar.errors.UnsupportedError, match="KerasState: .*Net of tf_keras"):
        ringar.elastic.KerasState(model)
    for callback in (
        ringar.callbacks.Distributed(),
        ringar.callbacks.Elastic(),
        ringar.callbacks.SaveOnSignal("model.keras"),
        ringar.callbacks.LearningRateWarmupCallback(0.1),
        ringar.callbacks.MetricAverageCallback(),
    ):
        with pytest.raises(ringar.errors.UnsupportedError, match=r"Net of tf_keras.*Keras 2"):
            callback.set_model(model)
