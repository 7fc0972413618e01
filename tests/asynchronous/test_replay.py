"""Replays of simulated runs, and of threads, reproduce the run bit by bit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

from ringar.asynchronous.log import Entry, staleness_histogram
from ringar.asynchronous.model_gradients import gradients_of
from ringar.asynchronous.replay import replay, simulate
from ringar.asynchronous.shard import Push, Shard
from ringar.asynchronous.staleness import (
    Asynchronous,
    BackupWorkers,
    HardSync,
    SoftSync,
    StalenessControl,
    StaleSynchronous,
)
from ringar.asynchronous.turnstile import Turnstile
from ringar.errors import MismatchError
from tests.asynchronous import workers
from tests.comparison import assert_all_close
from tests.keras import common

pytestmark = pytest.mark.ranks(1)

CONTROLS = [
    Asynchronous("staleness"),
    SoftSync(2, "staleness"),
    HardSync(),
    StaleSynchronous(1),
    BackupWorkers(1),
]


def run(shards: list[Shard], gradients: Any = workers.of_shards, seed: int = 0) -> list[Entry]:
    """A simulated run of 4 workers whose pushes to the shards interleave."""
    return simulate(shards, gradients, 4, workers.exponential, seed, 5, transfer=0.3)


def values(shards: list[Shard]) -> list[list[np.ndarray]]:
    return [shard.values() for shard in shards]


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("optimizer", [workers.sgd, workers.adam, workers.adagrad])
def test_a_replay_has_the_bits_of_the_run(
    shards: int, optimizer: Callable[[], keras.optimizers.Optimizer]
) -> None:
    controls = CONTROLS if optimizer is workers.sgd and shards == 2 else CONTROLS[:2]
    for control in controls:
        original = workers.make_shards(shards, control, 4, optimizer)
        log = run(original)
        order = np.random.default_rng(0).permutation(len(log))
        again = workers.make_shards(shards, control, 4, optimizer)
        replayed = replay([log[i] for i in order], again, workers.of_shards)
        assert workers.equal_bits(replayed, values(original)), control
        assert [shard.version for shard in again] == [shard.version for shard in original]
        if isinstance(control, Asynchronous):
            assert len(staleness_histogram(log)) > 3


def test_shards_see_different_orders() -> None:
    shards = workers.make_shards(2, Asynchronous(), 4)
    log = run(shards)
    orders = [[(e.worker, e.step) for e in log if e.shard == shard] for shard in range(2)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_equal_seeds_give_equal_runs() -> None:
    runs = []
    for seed in (0, 0, 1):
        shards = workers.make_shards(2, Asynchronous(), 4)
        runs.append((run(shards, seed=seed), values(shards)))
    assert runs[0][0] == runs[1][0] != runs[2][0]
    assert workers.equal_bits(runs[0][1], runs[1][1])


def test_a_replay_asks_for_each_gradient_once_and_in_order() -> None:
    requests: list[tuple[int, int]] = []

    def gradients(worker: int, step: int, copies: list[list[np.ndarray]]) -> list[list[Any]]:
        requests.append((worker, step))
        return workers.of_shards(worker, step, copies)

    control = BackupWorkers(1)
    log = run(workers.make_shards(3, control, 4))
    replay(log, workers.make_shards(3, control, 4), gradients)
    assert sorted(requests) == sorted({(e.worker, e.step) for e in log if e.applied})
    for worker in range(4):
        steps = [step for requester, step in requests if requester == worker]
        assert steps == sorted(steps)


def test_only_versions_that_are_needed_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hardsync one version is, for as many steps as there are."""
    copies: list[int] = []
    original = Shard.values

    def counted(shard: Shard) -> list[np.ndarray]:
        copies.append(shard.version)
        return original(shard)

    monkeypatch.setattr(Shard, "values", counted)
    shards = workers.make_shards(1, SoftSync(1), 4)
    log = run(shards)
    copies.clear()
    replay(log, workers.make_shards(1, SoftSync(1), 4), workers.of_shards)
    versions = {entry.version for entry in log}
    assert len(copies) == len(versions) + 1  # and the result


def test_learning_rates_are_replayed() -> None:
    shards = workers.make_shards(2, Asynchronous(), 4)

    def gradients(worker: int, step: int, copies: list[list[np.ndarray]]) -> list[list[Any]]:
        if (worker, step) == (1, 2):
            for shard in shards:
                shard.learning_rate = 0.01
        return workers.of_shards(worker, step, copies)

    log = run(shards, gradients)
    rates = [shard.rates for shard in shards]
    assert all(len(of_shard) == 1 for of_shard in rates)
    again = workers.make_shards(2, Asynchronous(), 4)
    assert workers.equal_bits(replay(log, again, workers.of_shards, rates), values(shards))
    again = workers.make_shards(2, Asynchronous(), 4)
    assert not workers.equal_bits(replay(log, again, workers.of_shards), values(shards))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shard": 2}, r"Entry\(.*shard=2.*there are shards 0 to 1"),
        ({"step": 90}, r"step=90.*shard [01] has no entry of this step"),
        ({"staleness": 7}, r"staleness=7.*must be `update` - `version`"),
        (
            {"update": 90, "staleness": 90 - 2},
            r"Expected.*update \d+ of the shard has no entry",
        ),
        ({"version": 19, "staleness": -9}, r"version=19.*staleness"),
        (None, r"the step has another entry of this shard"),
    ],
)
def test_logs_that_do_not_fit(change: Any, message: str) -> None:
    log = run(workers.make_shards(2, Asynchronous(), 4))
    index = next(i for i, entry in enumerate(log) if entry.shard == 0 and entry.version == 2)
    log[index:index] = [log[index]] if change is None else [log.pop(index)._replace(**change)]
    with pytest.raises(MismatchError, match=message):
        replay(log, workers.make_shards(2, Asynchronous(), 4), workers.of_shards)


def test_a_log_whose_pulls_depend_on_their_own_push() -> None:
    log = [
        Entry(0, 0, 0, 0, 0, 0, True, 0),
        Entry(0, 1, 1, 0, 0, 0, True, 0),
        Entry(1, 0, 1, 0, 1, 0, True, 1),
        Entry(1, 1, 0, 0, 1, 0, True, 1),
    ]
    with pytest.raises(MismatchError, match=r"version 1 of shard 1, which is version 0 until"):
        replay(log, workers.make_shards(2, Asynchronous(), 2), workers.of_shards)


def test_a_later_beginning() -> None:
    shards = workers.make_shards(2, Asynchronous(), 4)
    log = run(shards)
    with pytest.raises(MismatchError, match=r"shard 0 begins with version 20, which is later"):
        replay(log, shards, workers.of_shards)
    with pytest.raises(ValueError, match=r"in the order of their numbers"):
        replay(log, shards[::-1], workers.of_shards)


def test_replay_goes_on_from_a_state() -> None:
    """The second half of a run, from what was saved after the first."""
    shards = workers.make_shards(2, Asynchronous(), 4)
    run(shards)
    states = [shard.state() for shard in shards]
    groups = [workers.make_shards(2, Asynchronous(), 4) for _ in range(2)]
    for copies in groups:
        for shard, state in zip(copies, states, strict=True):
            shard.load(state, restart=True)
    log = run(groups[0], seed=1)
    assert min(entry.version for entry in log) == 20
    assert workers.equal_bits(replay(log, groups[1], workers.of_shards), values(groups[0]))


@pytest.mark.parametrize("control", CONTROLS, ids=str)
def test_a_schedule_is_forced_onto_threads(control: StalenessControl) -> None:
    """Workers that really run side by side pull and push in the order of a simulated run."""
    shards = workers.make_shards(1, control, 4)
    log = run(shards)
    (shard,) = workers.make_shards(1, control, 4)
    serve_threads(shard, Turnstile(log), steps=5)
    assert shard.log == log
    assert workers.equal_bits([shard.values()], values(shards))


def serve_threads(shard: Shard, turnstile: Turnstile, steps: int) -> None:
    """Serve workers that are threads, one push or pull at a time, in the order of a turnstile."""
    change = threading.Condition()
    arrived: dict[tuple[int, int], Push] = {}
    pulled: set[tuple[int, int]] = set()

    def is_at(version: int) -> bool:
        return shard.version == version

    def is_possible(turn: tuple[int, int]) -> bool:
        return turn in arrived and pulled.issuperset(turnstile.readers(shard.version))

    def work(worker: int) -> None:
        for step in range(steps):
            with change:
                version = turnstile.version(worker, step) or 0
                assert change.wait_for(partial(is_at, version), 20)
                current = shard.values()
                pulled.add((worker, step))
                change.notify_all()
            time.sleep(np.random.default_rng().uniform(0, 0.004))
            gradients = workers.of_shards(worker, step, [current])[0]
            with change:
                arrived[worker, step] = Push(worker, step, version, gradients)
                change.notify_all()

    threads = [threading.Thread(target=work, args=[worker], daemon=True) for worker in range(4)]
    for thread in threads:
        thread.start()
    while (turn := turnstile.next()) is not None:
        with change:
            assert change.wait_for(partial(is_possible, turn), 20)
            shard.take(arrived.pop(turn))
            if turnstile.is_last(*turn):
                shard.leave(turn[0])
            change.notify_all()
    for thread in threads:
        thread.join(20)


def test_turnstiles() -> None:
    assert Turnstile([]).next() is None
    pairs = Turnstile([(1, 0), (0, 0)])
    assert [pairs.next() for _ in range(3)] == [(1, 0), (0, 0), None]
    assert (pairs.version(1, 0), pairs.readers(0)) == (None, [])
    log = run(workers.make_shards(2, Asynchronous(), 4))
    with pytest.raises(ValueError, match=r"entries of the shards \[0, 1\]"):
        Turnstile(log)
    of_one = Turnstile(log, shard=1)
    assert of_one.next() == next((e.worker, e.step) for e in log if e.shard == 1)


def test_arguments_of_simulate() -> None:
    shards = workers.make_shards(1, Asynchronous(), 4)
    with pytest.raises(ValueError, match=r"steps=-1"):
        simulate(shards, workers.of_shards, 4, workers.exponential, 0, -1)
    assert simulate(shards, workers.of_shards, 4, workers.exponential, 0, 0) == []


def cut(arrays: list[np.ndarray]) -> list[list[np.ndarray]]:
    """The arrays of two shards, the first of which has five rows of the first variable."""
    return [[arrays[0][:5]], [arrays[0][5:], *arrays[1:]]]


def shards_of(model: keras.Model, control: Any) -> list[Shard]:
    """Shards that have pieces of a model's variables."""
    values = cut([np.array(variable) for variable in model.trainable_variables])
    return [Shard(n, arrays, workers.adam(), control, 3) for n, arrays in enumerate(values)]


def test_gradients_of_a_model() -> None:
    """They are those of Keras, for whole variables and for pieces, with rows of an Embedding."""
    x, y = common.tokens(8)
    model = common.embedding_model()
    model.compile("sgd", "mse")
    weights = [[np.array(variable) for variable in model.trainable_variables]]
    gradients: Any = gradients_of(model, lambda worker, step: (x, y))(0, 0, weights)
    of_pieces: Any = gradients_of(model, lambda worker, step: (x, y))(0, 0, cut(weights[0]))
    ((table, kernel, bias),), ((lower,), (upper, kernel_2, bias_2)) = gradients, of_pieces
    assert np.array_equal(kernel, kernel_2)
    assert np.array_equal(bias, bias_2)
    assert sorted(table.indices) == sorted([*lower.indices, *(upper.indices + 5)])
    assert len(set(table.indices)) == len(table.indices)
    dense = np.zeros_like(weights[0][0])
    dense[table.indices] = table.values
    model.train_on_batch(x, y)
    trained = [np.array(variable) for variable in model.trainable_variables]
    moved = [(a - b) / 0.01 for a, b in zip(weights[0], trained, strict=True)]
    assert_all_close([dense, kernel, bias], moved, atol=2e-5)
    with pytest.raises(ValueError, match=r"must be the trainable variables, in their order"):
        gradients_of(model, lambda *_: (x, y))(0, 0, cut(weights[0])[::-1])
    with pytest.raises(ValueError, match=r"must be compiled, and built"):
        gradients_of(keras.Sequential([keras.layers.Dense(1)]), lambda *_: (x, y))


def test_a_model_is_simulated_and_replayed() -> None:
    x, y = common.tokens(64)

    def batch_of(worker: int, step: int) -> tuple[Any, ...]:
        at = np.random.default_rng([worker, step]).integers(0, 64, 8)
        return x[at], y[at], np.ones(8, np.float32)

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(12, 5),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.BatchNormalization(center=False, scale=False),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse", metrics=["mae"])
    control = SoftSync(3, "staleness")
    shards, again = (shards_of(model, control) for _ in range(2))
    gradients = gradients_of(model, batch_of)
    log = simulate(shards, gradients, 3, workers.exponential, 0, 8, transfer=0.1)
    replayed = replay(log, again, gradients)
    assert workers.equal_bits(replayed, values(shards))
