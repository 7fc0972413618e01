"""PowerSGD in the optimizer: the paper's algorithm to the number, and that training converges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.collectives.powersgd import PowerSGD, matrix_shape
from tests.keras import common, digits, uneven
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

SGD = keras.optimizers.SGD

SHAPES = [(24, 16), (3, 3, 8, 12), (7,), (20, 2, 12), (), (2, 2)]
FACTORED = [0, 1, 3]
MODES: dict[str, Callable[[Any], Any]] = {
    "eager": lambda step: step,
    "graph": tf.function,
    "jit": lambda step: tf.function(step, jit_compile=True),
}


def gradients(step: int, rank: int, dtype: str = "float32") -> list[np.ndarray]:
    """A rank's gradients in a step, which every rank can compute: a common part and its own."""
    shared = np.random.default_rng(step // 2)
    noise = np.random.default_rng([step, rank])
    return [
        (shared.normal(size=shape) + 0.5 * noise.normal(size=shape)).astype(dtype)
        for shape in SHAPES
    ]


class Reference:
    """Algorithms 1 and 2 of the paper, for the gradient of one variable on all ranks, in NumPy."""

    def __init__(self, settings: PowerSGD, index: int, shape: Sequence[int], ranks: int) -> None:
        self.matrix = matrix_shape(shape)
        self.q = settings.first_q(index, self.matrix[1], min(settings.rank, *self.matrix))
        self.errors = [np.zeros(self.matrix) for _ in range(ranks)]
        self.feedback = settings.error_feedback

    def mean(self, gradients: Sequence[np.ndarray]) -> np.ndarray:
        """One step: the ranks' gradients to what all of them apply."""
        deltas = [g.reshape(self.matrix) for g in gradients]
        if self.feedback:
            deltas = [d + e for d, e in zip(deltas, self.errors, strict=True)]
        p = np.mean([delta @ self.q for delta in deltas], axis=0)
        p, _ = np.linalg.qr(p)
        factors = [delta.T @ p for delta in deltas]
        self.errors = [d - p @ q.T for d, q in zip(deltas, factors, strict=True)]
        self.q = np.mean(factors, axis=0)
        return (p @ self.q.T).reshape(gradients[0].shape)


def zeros(dtype: str = "float32") -> list[keras.Variable]:
    return [keras.Variable(np.zeros(shape), dtype=dtype) for shape in SHAPES]


def applied(variables: Sequence[keras.Variable], before: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What plain SGD at a learning rate of 1 subtracted."""
    return [old - np.asarray(new) for old, new in zip(before, variables, strict=True)]


@pytest.mark.parametrize(
    ("mode", "op", "feedback"),
    [
        fast_if(mode == "graph" or (op is ringar.Average and feedback), mode, op, feedback)
        for mode in MODES
        for op in (ringar.Average, ringar.Sum)
        for feedback in (True, False)
    ],
)
def test_steps_are_those_of_the_paper(
    mode: str, op: Any, feedback: bool, rank: int, size: int
) -> None:
    settings = PowerSGD(rank=2, seed=5, error_feedback=feedback)
    optimizer = ringar.DistributedOptimizer(
        SGD(1.0), op=op, compression=settings, postscale_factor=0.5
    )
    variables = zeros("float64")
    optimizer.build(variables)
    references = {
        place: Reference(settings, number, SHAPES[place], size)
        for number, place in enumerate(FACTORED)
    }
    apply = MODES[mode](lambda *grads: optimizer.apply(grads, variables))
    factor = 0.5 * (size if op is ringar.Sum else 1)
    for step in range(6):
        of_ranks = [gradients(step, r, "float64") for r in range(size)]
        before = [np.asarray(v) for v in variables]
        apply(*[tf.constant(g) for g in of_ranks[rank]])
        for place, update in enumerate(applied(variables, before)):
            of_variable = [grads[place] for grads in of_ranks]
            expected = np.mean(of_variable, axis=0)
            if size > 1 and place in FACTORED:
                expected = references[place].mean(of_variable)
                assert np.abs(expected - np.mean(of_variable, axis=0)).max() > 0.1
            np.testing.assert_allclose(update, expected * factor, rtol=0, atol=1e-9)


@pytest.mark.ranks(2, 3)
def test_float32_is_as_exact_as_float32(rank: int, size: int) -> None:
    settings = PowerSGD(rank=3)
    optimizer = ringar.DistributedOptimizer(SGD(1.0), compression=settings)
    variables = zeros()
    references = {p: Reference(settings, i, SHAPES[p], size) for i, p in enumerate(FACTORED)}
    for step in range(6):
        of_ranks = [gradients(step, r) for r in range(size)]
        before = [np.asarray(v) for v in variables]
        optimizer.apply([tf.constant(g) for g in of_ranks[rank]], variables)
        updates = applied(variables, before)
        for place, reference in references.items():
            expected = reference.mean([grads[place] for grads in of_ranks])
            np.testing.assert_allclose(updates[place], expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("mode", MODES)
def test_enough_columns_give_the_mean_itself(mode: str, rank: int, size: int) -> None:
    settings = PowerSGD(rank=1000, min_compression_rate=1e-3)
    optimizer = ringar.DistributedOptimizer(SGD(1.0), compression=settings)
    variables = zeros()
    optimizer.build(variables)
    apply = MODES[mode](lambda *grads: optimizer.apply(grads, variables))
    for step in range(2):
        before = [np.asarray(v) for v in variables]
        apply(*[tf.constant(g) for g in gradients(step, rank)])
        for place, update in enumerate(applied(variables, before)):
            expected = np.mean([gradients(step, r)[place] for r in range(size)], axis=0)
            np.testing.assert_allclose(update, expected, rtol=0, atol=1e-5)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("feedback", [True, False], ids=["feedback", "forgetful"])
def test_every_component_is_applied_in_the_end(feedback: bool, rank: int, size: int) -> None:
    """With the same gradients in each step; without the errors most of them never arrive."""
    settings = PowerSGD(rank=1, error_feedback=feedback)
    optimizer = ringar.DistributedOptimizer(SGD(1.0), compression=settings)
    gradient = np.random.default_rng(rank).normal(size=(12, 10)).astype("float32")
    mean = np.mean([np.random.default_rng(r).normal(size=(12, 10)) for r in range(size)], axis=0)
    variable = keras.Variable(np.zeros_like(gradient))
    steps = 200
    for _ in range(steps):
        optimizer.apply([tf.constant(gradient)], [variable])
    shortfall = np.linalg.norm(-np.asarray(variable) / steps - mean) / np.linalg.norm(mean)
    assert shortfall < 0.1 if feedback else shortfall > 0.5


@pytest.mark.ranks(2, 4)
def test_bytes_are_those_of_the_formula() -> None:
    settings = PowerSGD(rank=2)
    optimizer = ringar.DistributedOptimizer(SGD(1.0), compression=settings, algorithm="ring")
    variables = zeros()
    optimizer.build(variables)
    step = tf.function(lambda *grads: optimizer.apply(grads, variables))
    graph = step.get_concrete_function(*[tf.TensorSpec(s, tf.float32) for s in SHAPES]).graph
    calls = [op for op in graph.get_operations() if op.type.startswith("RingarAllreduce")]
    sent_bytes = sum(tensor.shape.num_elements() * 4 for op in calls for tensor in op.inputs)
    control = 12  # bytes in front of the bucket (ringar.collectives.shares)
    assert sent_bytes - control == settings.sent_bytes(SHAPES)
    assert sent_bytes < sum(4 * v.value.shape.num_elements() for v in variables) / 2
    specs = [op.get_attr("spec").decode() for op in calls]
    assert [spec.split("name=gradients/")[1] for spec in specs] == [
        "bucket_0:5-4,2",
        "powersgd_p:3,1-0",
        "powersgd_q:3,1-0",
    ]
    assert all("algorithm=ring " in spec for spec in specs)


@pytest.mark.ranks(2, 4)
def test_state_is_each_ranks_own_and_is_not_saved(
    rank: int, size: int, exchange: Callable[[Any], Any]
) -> None:
    plain, optimizer = SGD(momentum=0.9, name="sgd"), SGD(momentum=0.9, name="sgd")
    ringar.DistributedOptimizer(optimizer, compression=PowerSGD(rank=2))
    variables = zeros()
    plain.build(zeros())
    optimizer.apply([tf.constant(g) for g in gradients(0, rank)], variables)
    assert [v.shape for v in optimizer.variables] == [v.shape for v in plain.variables]
    assert optimizer.get_config() == plain.get_config()
    states = list(optimizer._exchange.reduction.low_rank._states.values())
    assert len(states) == len(FACTORED)
    assert len(set(exchange(states[0].q.numpy().tobytes()))) == 1
    assert len(set(exchange(states[0].error.numpy().tobytes()))) == size


@pytest.mark.ranks(2, 4)
def test_a_gradient_that_is_zero_at_first(rank: int) -> None:
    """It leaves a Q of zeros behind, from which the next step has to find its way."""
    optimizer = ringar.DistributedOptimizer(SGD(1.0), compression=PowerSGD(rank=1))
    variable = keras.Variable(np.zeros((12, 10), "float32"))
    optimizer.apply([tf.zeros([12, 10])], [variable])
    np.testing.assert_array_equal(variable, 0)
    for _ in range(4):
        optimizer.apply([tf.ones([12, 10])], [variable])
    np.testing.assert_allclose(variable, -4 * np.ones((12, 10)), atol=1e-4)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_loss_scale_and_overflow_leave_the_state_right(inside: bool, rank: int, size: int) -> None:
    """Steps under a scale that changes, one of which overflows on one rank, against the paper."""
    settings = PowerSGD(rank=2)
    scaled = keras.optimizers.LossScaleOptimizer
    optimizer = (
        ringar.DistributedOptimizer(scaled(SGD(1.0), dynamic_growth_steps=2), compression=settings)
        if inside
        else scaled(
            ringar.DistributedOptimizer(SGD(1.0), compression=settings), dynamic_growth_steps=2
        )
    )
    variables = zeros()
    optimizer.build(variables)
    apply = tf.function(lambda *grads: optimizer.apply(grads, variables))
    references = {p: Reference(settings, i, SHAPES[p], size) for i, p in enumerate(FACTORED)}
    scales = []
    for step in range(8):
        scales.append(common.number(optimizer.dynamic_scale))
        overflows = {3: 0, 5: 2}.get(step)  # of a matrix, then of a vector, which has no state
        scaled_gradients = [g * scales[-1] for g in gradients(step, rank)]
        if overflows is not None and rank == size - 1:
            scaled_gradients[overflows][..., 0] = np.inf
        before = [np.asarray(v) for v in variables]
        apply(*[tf.constant(g, tf.float32) for g in scaled_gradients])
        updates = applied(variables, before)
        for place, update in enumerate(updates):
            if overflows is not None:
                np.testing.assert_array_equal(update, 0)
            elif place in FACTORED:
                expected = references[place].mean([gradients(step, r)[place] for r in range(size)])
                np.testing.assert_allclose(update, expected, rtol=0, atol=5e-4)
    assert len(set(scales)) > 1
    assert np.all(np.isfinite(scales))


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize(
    ("jit", "policy"),
    [
        fast_if(jit == (policy == "mixed_float16"), jit, policy)
        for jit in (False, True)
        for policy in ("float32", "mixed_float16", "mixed_bfloat16")
    ],
)
def test_fit(jit: bool, policy: str, exchange: Callable[[Any], Any]) -> None:
    """With gradient accumulation; all ranks stay bit-identical, and the loss falls."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = common.dense_model(seed=0)
    finally:
        keras.config.set_dtype_policy(before)
    settings = PowerSGD(rank=1, min_compression_rate=1.0)
    optimizer = ringar.DistributedOptimizer(
        SGD(0.1, momentum=0.9, gradient_accumulation_steps=2), compression=settings
    )
    model.compile(optimizer, "mse", jit_compile=jit)
    callbacks = [ringar.callbacks.Distributed()]
    history = model.fit(
        common.own_batches(common.regression()), verbose=0, epochs=4, callbacks=callbacks
    )
    assert optimizer._exchange.reduction.low_rank._states
    assert history.history["loss"][-1] < 0.8 * history.history["loss"][0]
    assert len(set(exchange(common.digest(model)))) == 1


@pytest.mark.slow
@pytest.mark.ranks(2)
@pytest.mark.deadline(60)
def test_training_converges_as_without_compression() -> None:
    """Digits, rank 1: at most 3% of the test images lost, where no feedback loses 8% or more."""
    accuracies = {
        name: digits.train(5, compression=compression)[1]
        for name, compression in {
            "none": ringar.Compression.none,
            "feedback": PowerSGD(rank=1),
            "forgetful": PowerSGD(rank=1, error_feedback=False),
        }.items()
    }
    assert accuracies["none"] > 0.92, accuracies
    assert accuracies["feedback"] > accuracies["none"] - 0.03, accuracies
    assert accuracies["forgetful"] < accuracies["none"] - 0.08, accuracies


def test_refusals() -> None:
    stateful: Any = PowerSGD()
    with pytest.raises(ValueError, match=r"`compression` must be without state"):
        ringar.allreduce(np.ones((4, 4), "float32"), compression=stateful)
    with pytest.raises(ValueError, match=r"`compression` must be without state"):
        ringar.allreduce(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0])), compression=stateful)
    with pytest.raises(ValueError, match=r"`compression` must be without state"):
        ringar.DistributedGradientTape(tf.GradientTape(), compression=stateful)
    with pytest.raises(ValueError, match=r"`compression` must be an object with settings"):
        ringar.DistributedOptimizer(SGD(), compression=type(stateful))
    with pytest.raises(ValueError, match=r"`rank` must be"):
        PowerSGD(rank=0)


@pytest.mark.ranks(2, 4)
def test_state_is_kept_by_variable() -> None:
    optimizer = ringar.DistributedOptimizer(SGD(1.0), compression=PowerSGD(rank=1))
    with pytest.raises(ValueError, match="`trainable_variables` must be passed"):
        optimizer.reduce([tf.ones([12, 10])])


@pytest.mark.ranks(2, 3, 4)
def test_nothing_is_lost_between_ranks_with_other_batches(
    rank: int, size: int, exchange: Callable[[Any], list[Any]]
) -> None:
    """What was applied, and the mean of the ranks' errors, are the gradients of one process."""

    def make(rows: int, seed: int) -> uneven.Batch:
        draw = np.random.default_rng(seed).normal
        return draw(size=(rows, 6)).astype("float32"), draw(size=(rows, 5)).astype("float32")

    batches = uneven.batches_of(size, make)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, use_bias=False)])
    optimizer = ringar.DistributedOptimizer(SGD(1.0), compression=PowerSGD(rank=1))
    # The gradient of this loss does not depend on the kernel.
    model.compile(optimizer, lambda y, outputs: tf.reduce_sum(y * outputs, -1))
    ringar.broadcast_variables(model.weights)
    before = model.get_weights()[0]
    callbacks = [ringar.callbacks.Distributed()]
    model.fit(uneven.dataset(batches[rank]), verbose=0, callbacks=callbacks)
    (state,) = optimizer._exchange.reduction.low_rank._states.values()
    errors = exchange(state.error.numpy())
    assert np.abs(errors).max() > 0.1
    gradients = [x.T @ y / len(x) for x, y in uneven.together(batches)]
    applied = before - model.get_weights()[0]
    np.testing.assert_allclose(applied + np.mean(errors, axis=0), sum(gradients), atol=1e-5)
