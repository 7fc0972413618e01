"""Local SGD and the methods built on it, against a model per rank in one process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.asynchronous import periods
from tests.asynchronous.workers import adam, sgd
from tests.comparison import assert_same_everywhere
from tests.interruption import Interrupt, StopOn
from tests.keras import common, uneven
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

Exchange = Callable[[Any], list[Any]]
Wrap = Callable[[Any], Any]


def fit(
    wrap: Wrap,
    batches: Any,
    make: Callable[[], Any] = sgd,
    epochs: int = 2,
    callbacks: Any = (),
    **options: Any,
) -> keras.Model:
    """Train on this rank's batches with `wrap(optimizer)`."""
    model = common.dense_model()
    model.compile(wrap(make()), "mse", **options)
    model.fit(
        uneven.dataset(batches),
        epochs=epochs,
        verbose=0,
        callbacks=[ringar.callbacks.Distributed(), *callbacks],
    )
    return model


def parameters(model: keras.Model) -> list[np.ndarray]:
    return [np.array(v) for v in model.trainable_variables]


def batches_of(size: int) -> list[list[Any]]:
    return uneven.batches_of(size, common.regression)


RULES: dict[str, tuple[Wrap, periods.Combine]] = {
    "averaging": (lambda o: ringar.LocalSGD(o, 2), periods.averaging),
    "slowmo": (
        lambda o: ringar.LocalSGD(o, 2, outer=ringar.SlowMo(0.6, 0.9)),
        periods.slow_momentum(0.6, 0.9),
    ),
    "diloco": (lambda o: ringar.DiLoCo(o, 2), periods.nesterov(0.7, 0.9)),
    "easgd": (lambda o: ringar.EASGD(o, 2, beta=0.8), periods.elastic(0.8)),
}


@pytest.mark.parametrize("rule", [fast_if(rule in ("slowmo", "easgd"), rule) for rule in RULES])
@pytest.mark.parametrize("options", [{}, fast_if(False, {"jit_compile": True})], ids=["", "jit"])
def test_uneven_ranks_equal_one_process(
    rule: str, options: dict[str, Any], rank: int, size: int
) -> None:
    wrap, combine = RULES[rule]
    batches = batches_of(size)
    model = fit(wrap, batches[rank], adam, **options)
    ranks = periods.train(common.dense_model, adam, batches, lambda _: 2, combine, epochs=2)
    assert common.largest_difference(parameters(model), ranks.parameters()[0]) < 2e-5


def test_slow_momentum_takes_the_rates_of_a_period(rank: int, size: int) -> None:
    """By a schedule that ends with 0, in which ranks with fewer steps are behind."""
    wrap, combine = RULES["slowmo"]
    batches = batches_of(size)
    steps = 2 * max(map(len, batches))

    def decaying() -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(keras.optimizers.schedules.PolynomialDecay(0.1, steps, 0.0))

    model = fit(wrap, batches[rank], decaying)
    ranks = periods.train(common.dense_model, decaying, batches, lambda _: 2, combine, epochs=2)
    assert common.largest_difference(parameters(model), ranks.parameters()[0]) < 2e-5


@pytest.mark.parametrize(
    "schedule",
    [
        {"period": 3, "warmup_steps": 3},
        {"period": lambda step: tf.where(step < 4, 1, 3)},
    ],
    ids=["warm-up", "function"],
)
def test_post_local_sgd(schedule: dict[str, Any], rank: int, size: int) -> None:
    """Periods of one step first, then of three."""
    batches = [[common.regression(4, 10 * r + k) for k in range(6)] for r in range(size)]
    model = fit(lambda o: ringar.LocalSGD(o, **schedule), batches[rank])
    ranks = periods.train(
        common.dense_model, sgd, batches, lambda step: 1 if step < 3 else 3, periods.averaging, 2
    )
    assert common.largest_difference(parameters(model), ranks.parameters()[0]) < 1e-5


@pytest.mark.parametrize(
    "compression", [ringar.Compression.none, ringar.Compression.powersgd(rank=1)], ids=str
)
def test_periods_of_one_step_are_allreduce_sgd(compression: Any, rank: int, size: int) -> None:
    batches = batches_of(size)[rank]
    local = fit(lambda o: ringar.LocalSGD(o, 1, compression=compression), batches)
    reduced = fit(lambda o: ringar.DistributedOptimizer(o, compression=compression), batches)
    assert common.largest_difference(common.values(local), common.values(reduced)) < 1e-5


def test_special_cases_agree(rank: int, size: int) -> None:
    batches = batches_of(size)[rank]
    local = fit(lambda o: ringar.LocalSGD(o, 2), batches)
    outers: list[Any] = [ringar.SlowMo(0.0, 1.0), keras.optimizers.SGD(1.0)]
    for outer in outers:
        other = fit(functools.partial(ringar.LocalSGD, period=2, outer=outer), batches)
        assert common.largest_difference(common.values(local), common.values(other)) < 1e-6


def test_slots(rank: int, size: int, exchange: Exchange) -> None:
    batches = batches_of(size)
    parameters = fit(lambda o: ringar.LocalSGD(o, 2), batches[rank], adam)
    mean = fit(lambda o: ringar.LocalSGD(o, 2, average="parameters+slots"), batches[rank], adam)

    def slots(model: keras.Model) -> list[np.ndarray]:
        return [np.array(v) for v in model.optimizer.variables[2:]]

    assert len({str(of_rank) for of_rank in exchange(str(slots(mean)))}) == 1
    assert len({str(of_rank) for of_rank in exchange(str(slots(parameters)))}) == size


@pytest.mark.parametrize("wrap", [ringar.DiLoCo, fast_if(False, ringar.EASGD)])
def test_moving_averages_are_those_of_all_ranks(wrap: Any, rank: int, size: int) -> None:
    def averaging() -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)

    model = fit(lambda o: wrap(o, 2), batches_of(size)[rank], averaging)
    of_ranks = ringar.allgather_object(parameters(model))
    assert max(common.largest_difference(of_ranks[0], other) for other in of_ranks) == 0


def test_nothing_is_sent_within_a_period(rank: int, size: int) -> None:
    batches = [common.regression(4, 10 * rank + k) for k in range(8)]
    model = common.dense_model()
    model.compile(ringar.LocalSGD(sgd(), 4), "mse")
    names = []
    for x, y in batches:
        ringar.reset_stats()
        model.train_on_batch(x, y)
        names.append([*ringar.stats(by="layer")])
    assert names[1:] == [["parameters"] if k % 4 == 3 and size > 1 else [] for k in range(1, 8)]


def test_one_rank_stops_all(rank: int, size: int, exchange: Exchange) -> None:
    batches = [common.regression(4, 10 * rank + k) for k in range(40)]
    model = fit(lambda o: ringar.LocalSGD(o, 4), batches, epochs=3, callbacks=[StopOn(size - 1)])
    assert_same_everywhere([v.tobytes() for v in common.values(model)], exchange)
    assert max(exchange(common.number(model.optimizer.iterations))) < 10


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["slowmo", "diloco", fast_if(False, "easgd")])
def test_an_interrupted_run_goes_on_within_a_period(
    rule: str, rank: int, size: int, shared_tmp_path: Path
) -> None:
    wrap = RULES[rule][0]
    batches = [common.regression(4, 10 * rank + k) for k in range(5)]
    backup = keras.callbacks.BackupAndRestore(shared_tmp_path, save_freq=3)
    expected = fit(wrap, batches, adam, 3)
    with pytest.raises(InterruptedError):
        fit(wrap, batches, adam, 3, [backup, Interrupt(8)])
    assert common.digest(fit(wrap, batches, adam, 3, [backup])) == common.digest(expected)


def test_an_overflow_of_one_rank(
    rank: int, size: int, exchange: Exchange, mixed_float16: None
) -> None:
    """Its step is skipped on that rank alone; the exchange is not."""
    batches = [common.regression(4, 10 * rank + k) for k in range(4)]
    if rank == size - 1:
        batches[1][0][:] = 1e30
    model = fit(lambda o: ringar.LocalSGD(o, 2), batches, epochs=1)
    assert_same_everywhere([v.tobytes() for v in common.values(model)], exchange)
    assert all(np.isfinite(value).all() for value in common.values(model))


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_a_loop_of_ones_own(graph: bool, rank: int, size: int) -> None:
    batches = batches_of(size)
    model, loss_of = common.dense_model(), keras.losses.MeanSquaredError()
    optimizer = ringar.EASGD(sgd(), 2, beta=0.8)

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    traced = tf.function(step, reduce_retracing=True) if graph else step
    for _ in range(2):
        for x, y in batches[rank]:
            traced(tf.constant(x), tf.constant(y))
        ringar.join(optimizer)
    ranks = periods.train(
        common.dense_model, sgd, batches, lambda _: 2, periods.elastic(0.8), epochs=2
    )
    assert common.largest_difference(parameters(model), ranks.parameters()[0]) < 2e-5


def test_arguments() -> None:
    with pytest.raises(ValueError, match=r"`period` must be a positive number.*period=0"):
        ringar.LocalSGD(sgd(), 0)
    with pytest.raises(ValueError, match=r"`average` must be \"parameters\" or"):
        ringar.LocalSGD(sgd(), average="slots")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`outer` must be a ringar.SlowMo, or an optimizer"):
        ringar.LocalSGD(sgd(), outer=ringar.LocalSGD(sgd()))
    with pytest.raises(ValueError, match="must not be distributed already"):
        ringar.LocalSGD(ringar.DistributedOptimizer(sgd()))
    with pytest.raises(
        ValueError, match=r"`beta` must be positive and at most 1. Received: beta=2"
    ):
        ringar.EASGD(sgd(), beta=2)
    with pytest.raises(ValueError, match=r"`beta` must be in \[0, 1\)"):
        ringar.SlowMo(1.0)


def test_the_end_of_data_of_unknown_length_is_no_step(size: int) -> None:
    data = uneven.dataset(batches_of(size)[0][:3], has_length=False)
    model = common.dense_model()
    model.compile(ringar.LocalSGD(sgd(), 2), "mse")
    model.fit(data, epochs=2, verbose=0, callbacks=[ringar.callbacks.Distributed()])
    assert model.optimizer._exchange.steps == 6
