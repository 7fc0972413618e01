"""Steps that XLA compiles, with a parameter server and with shared weights.

The numbers are small dyadic fractions in float64, of which no sum is rounded: a compiled step has
the bits of one that runs as a graph, in whatever order XLA adds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import ringar
from ringar import asynchronous
from tests import one_process
from tests.asynchronous.test_parameter_server import equal, final_values, whole_log
from tests.comparison import assert_all_close, assert_same_everywhere
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

STEPS, ROWS = 4, 2


def sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.25)


def batch_of(worker: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng([worker, step]).integers(0, 2, (ROWS, 3)).astype("float64")
    return x, x.sum(axis=1, keepdims=True)


def data_of(worker: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = zip(*(batch_of(worker, step) for step in range(STEPS)), strict=True)
    return np.concatenate(x), np.concatenate(y)


def make_model() -> keras.Model:
    dense = keras.layers.Dense(1, dtype="float64")
    model = keras.Sequential([keras.Input((3,), dtype="float64"), dense])
    dense.set_weights([np.array([[1.0], [-1.0], [0.5]]), np.array([2.0])])
    model.compile("sgd", "mse")
    return model


def fit(model: keras.Model, optimizer: Any, worker: int, compiled: bool = True) -> keras.Model:
    model.compile(optimizer, "mse", jit_compile=compiled)
    callbacks = [ringar.callbacks.Distributed()] if hasattr(optimizer, "_exchange") else []
    x, y = data_of(worker)
    model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0, callbacks=callbacks)
    return model


def run(
    compiled: bool, **options: Any
) -> tuple[list[asynchronous.Entry], dict[int, list[np.ndarray]], list[asynchronous.Shard]]:
    """Train by Downpour; return the log, the values and the shards that the run began with."""
    model = make_model()
    with ringar.ParameterServer(model, sgd(), 2, **options) as server:
        before = server.new_shards([np.array(v) for v in server.variables], sgd())
        fit(model, ringar.Downpour(sgd(), server), server.worker, compiled)
    return whole_log(server), final_values(server), before


@pytest.mark.parametrize(
    "control",
    [ringar.StaleSynchronous(1), fast_if(False, ringar.Asynchronous("staleness"))],
    ids=str,
)
def test_downpour_has_the_bits_of_steps_that_are_not_compiled(
    control: asynchronous.StalenessControl, size: int
) -> None:
    log, values, before = run(True, control=control)
    assert len(log) == 2 * size * STEPS
    gradients = asynchronous.gradients_of(make_model(), batch_of)
    equal(values, one_process.compute(lambda: asynchronous.replay(log, before, gradients)))
    _, repeated, _ = run(False, control=control, schedule=log)
    equal(repeated, [values[number] for number in sorted(values)])


@pytest.mark.parametrize(
    "make",
    [
        lambda server: ringar.EASGD(sgd(), 2, server=server),
        fast_if(
            False,
            lambda server: ringar.Downpour(sgd(), server, n_fetch=2, n_push=3, overlap=True),
        ),
    ],
    ids=["easgd", "overlapping"],
)
def test_all_end_with_the_servers_values(
    make: Callable[[ringar.ParameterServer], Any], size: int
) -> None:
    model = make_model()
    before = [np.array(v) for v in model.trainable_variables]
    with ringar.ParameterServer(model, keras.optimizers.SGD(1.0)) as server:
        fit(model, make(server), server.worker)
        assert any((a != b).any() for a, b in zip(before, server.pull(), strict=True))
    pushes = [entry for entry in whole_log(server) if entry.shard == 0]
    assert len(pushes) == 2 * size


@pytest.mark.ranks(1)
def test_one_rank_of_hogwild_has_the_bits_of_plain_keras() -> None:
    model = fit(make_model(), ringar.Hogwild(sgd()), 0)
    plain = fit(make_model(), sgd(), 0, compiled=False)
    assert_all_close(model.get_weights(), plain.get_weights())


def test_hogwild_ends_with_one_model(exchange: Callable[[Any], list[Any]]) -> None:
    model = fit(make_model(), ringar.Hogwild(sgd()), ringar.rank())
    weights = [value.tobytes() for value in model.get_weights()]
    assert_same_everywhere(weights, exchange)
    assert weights != [value.tobytes() for value in make_model().get_weights()]


def test_a_push_that_fails_ends_the_compiled_step() -> None:
    model = make_model()
    with ringar.ParameterServer(model, sgd()) as server:
        optimizer = ringar.Downpour(sgd(), server)
        model.compile(optimizer, "mse", jit_compile=True)
        model.train_on_batch(*batch_of(0, 0))

        def lose(*_: Any) -> bool:
            raise ringar.errors.PeerLostError("rank 7 | the server was lost")

        pace = optimizer._exchange.period._pace
        pace.step, step = lose, pace.step
        with pytest.raises(Exception, match="PeerLostError: rank 7 | the server was lost"):
            model.train_on_batch(*batch_of(0, 1))
        pace.step = step
        model.train_on_batch(*batch_of(0, 1))
