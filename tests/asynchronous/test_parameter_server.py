"""`ringar.ParameterServer` and `ringar.Downpour`: exact cases, replays, roles, errors."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import ringar
from ringar import asynchronous
from ringar.asynchronous.log import LOST
from ringar.asynchronous.partition import Description, partition
from ringar.asynchronous.shard_files import ShardFiles
from tests import one_process
from tests.asynchronous.workers import adam
from tests.comparison import assert_all_close
from tests.keras import common
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

STEPS = 6
CONTROLS: dict[str, asynchronous.StalenessControl] = {
    "asynchronous": ringar.Asynchronous("staleness"),
    "softsync": ringar.SoftSync(1),
    "hardsync": ringar.HardSync(),
    "ssp": ringar.StaleSynchronous(1),
    "backup": ringar.BackupWorkers(0),
}


def sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.05)


def batch_of(worker: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([worker, step])
    x = rng.standard_normal((8, 6)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def dense_model() -> keras.Model:
    model = common.dense_model()
    model.compile("sgd", "mse")
    return model


def words_of(worker: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([worker, step, 1])
    words = rng.integers(0, 50, (6, 3))
    return words, words.sum(axis=1, keepdims=True).astype("float32") / 50


def word_model() -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile("sgd", "mse")
    return model


def whole_log(server: ringar.ParameterServer) -> list[asynchronous.Entry]:
    """The log of all shards, on all ranks."""
    logs = ringar.allgather_object(server.log())
    return [asynchronous.Entry(*entry) for log in logs for entry in log]


def final_values(server: ringar.ParameterServer) -> dict[int, list[np.ndarray]]:
    """The values of all shards, on all ranks."""
    shard_values = {number: shard.values() for number, shard in server.shards.items()}
    return {k: v for of_rank in ringar.allgather_object(shard_values) for k, v in of_rank.items()}


def equal(result: dict[int, list[np.ndarray]], expected: Sequence[Sequence[np.ndarray]]) -> None:
    assert len(result) == len(expected)
    for number, arrays in enumerate(expected):
        assert_all_close(result[number], arrays)


def run(
    model: keras.Model,
    batches: Callable[[int, int], Any],
    make: Callable[[], Any] = sgd,
    shards: int = 2,
    pulls: int = 1,
    **options: Any,
) -> tuple[list[asynchronous.Entry], dict[int, list[np.ndarray]], list[list[np.ndarray]]]:
    """Train with a server; return its log and values, and those of a replay in one process."""
    gradients = asynchronous.gradients_of(model, batches)
    with ringar.ParameterServer(model, make(), shards, **options) as server:
        before = server.new_shards([np.array(v) for v in server.variables], make())
        for step in range(STEPS if server.is_worker else 0):
            for _ in range(pulls - 1):
                server.pull()
                time.sleep(0.005)  # in which others push
            server.push(gradients(server.worker, step, [server.pull()])[0])
    log, values = whole_log(server), final_values(server)
    of_shards = asynchronous.gradients_of(model, batches)
    return log, values, one_process.compute(lambda: asynchronous.replay(log, before, of_shards))


@pytest.mark.parametrize("control", CONTROLS)
def test_replays_have_the_same_bits(control: str, size: int) -> None:
    log, values, replayed = run(dense_model(), batch_of, control=CONTROLS[control])
    equal(values, replayed)
    assert sorted((e.shard, e.worker, e.step) for e in log) == [
        (shard, worker, step)
        for shard in range(2)
        for worker in range(size)
        for step in range(STEPS)
    ]


@pytest.mark.parametrize(
    ("make", "shards"), [(adam, 3), fast_if(False, sgd, 1), fast_if(False, adam, 4)]
)
def test_replays_of_embeddings_and_other_shards(make: Callable[[], Any], shards: int) -> None:
    _, values, replayed = run(word_model(), words_of, make, shards)
    equal(values, replayed)


def test_a_schedule_forces_the_order_of_another_run() -> None:
    log, values, _ = run(dense_model(), batch_of)
    again, repeated, _ = run(dense_model(), batch_of, pulls=2, schedule=log)  # as an epoch's end
    assert sorted(log) == sorted(again)
    equal(repeated, [values[number] for number in sorted(values)])
    lost_push = log[0]._replace(sequence=-1, update=LOST)
    with pytest.raises(ValueError, match="a run in which all shards got each push"):
        ringar.ParameterServer(dense_model(), sgd(), 2, schedule=[*log[1:], lost_push])
    of_last_shard = [entry for entry in log if entry.shard == 1]
    with pytest.raises(ValueError, match="`schedule` must begin with push 0 to shard 1"):
        ringar.ParameterServer(dense_model(), sgd(), 2, schedule=of_last_shard[1:])


def test_a_log_keeps_its_newest_entries(size: int) -> None:
    model = dense_model()
    with ringar.ParameterServer(model, sgd(), 1, log_size=2) as server:
        fit(server, model)
    if server.shards:
        assert [entry.sequence for entry in server.log()] == [size * STEPS - 2, size * STEPS - 1]
        assert sum(server.staleness().values()) == size * STEPS


@pytest.mark.parametrize("control", ["hardsync", fast_if(False, "asynchronous")])
def test_versions_of_a_second_fit(control: str) -> None:
    """By another optimizer: the log tells what it has trained with, and replays."""
    model = dense_model()
    with ringar.ParameterServer(model, sgd(), 2, control=CONTROLS[control]) as server:
        before = server.new_shards([np.array(v) for v in server.variables], sgd())
        fit(server, model)
        fit(server, model)
        model.train_on_batch(*batch_of(server.worker, 2 * STEPS))
    log, values = whole_log(server), final_values(server)

    def batches(worker: int, step: int) -> Any:
        return batch_of(worker, step % STEPS if step < 2 * STEPS else step)

    gradients = asynchronous.gradients_of(dense_model(), batches)
    replayed = one_process.compute(lambda: asynchronous.replay(log, before, gradients))
    for number, arrays in enumerate(replayed):
        assert_all_close(values[number], arrays, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "control",
    [ringar.HardSync(), ringar.StaleSynchronous(0)],
    ids=["hardsync", "bulk"],
)
def test_synchronous_limits(control: asynchronous.StalenessControl, size: int) -> None:
    """HardSync is SGD with the mean of all gradients, SSP with bound 0 that with their sum."""
    _, values, _ = run(dense_model(), batch_of, shards=1, control=control)
    rate = 0.05 if isinstance(control, ringar.HardSync) else 0.05 * size

    def synchronous() -> list[np.ndarray]:
        model = dense_model()
        model.compile(keras.optimizers.SGD(rate), "mse")
        for step in range(STEPS):
            batches = [batch_of(worker, step) for worker in range(size)]
            model.train_on_batch(*(np.concatenate(part) for part in zip(*batches, strict=True)))
        return [np.array(v) for v in model.trainable_variables]

    assert_all_close(values[0], one_process.compute(synchronous), rtol=1e-5, atol=1e-6)


def data_of(worker: int, batches: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    x, y = zip(*(batch_of(worker, step) for step in range(batches)), strict=True)
    return np.concatenate(x), np.concatenate(y)


def fit(server: ringar.ParameterServer, model: keras.Model, epochs: int = 1, **options: Any) -> Any:
    callbacks = options.pop("callbacks", [])
    model.compile(ringar.Downpour(sgd(), server, **options), "mse")
    return model.fit(
        *data_of(server.worker),
        batch_size=8,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[ringar.callbacks.Distributed(), *callbacks],
    )


@pytest.mark.ranks(1)
def test_one_replica_is_serial_sgd() -> None:
    model, serial = dense_model(), dense_model()
    with ringar.ParameterServer(model, sgd(), shards=3) as server:
        history = fit(server, model, epochs=2)
    serial.compile(sgd(), "mse")
    expected = serial.fit(*data_of(0), batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert history.history == expected.history
    assert_all_close(model.get_weights(), serial.get_weights())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_fetch": 2, "n_push": 3},
        {"overlap": True},
        fast_if(False, {"n_fetch": 3, "overlap": True}),
        fast_if(False, {"warm_start": 2}),
    ],
    ids=str,
)
def test_downpour_trains_and_all_end_with_the_servers_values(
    options: dict[str, Any], size: int
) -> None:
    model = dense_model()
    with ringar.ParameterServer(model, sgd()) as server:
        history = fit(server, model, epochs=3, **options)
        assert history.history["loss"][-1] < history.history["loss"][0]
    pushes = [(e.worker, e.step) for e in whole_log(server) if e.shard == 0 and e.applied]
    left_out = size - 1 if "warm_start" in options else 0
    assert (
        len(pushes) == len(set(pushes)) == size * 3 * STEPS // options.get("n_push", 1) - left_out
    )


def decaying() -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.AdamW(0.05, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


@pytest.mark.ranks(1)
def test_exclusions_and_constraints_of_the_model_hold_on_shards() -> None:
    def constrained() -> keras.Model:
        keras.utils.set_random_seed(1)
        layer = keras.layers.Dense(4, kernel_constraint=keras.constraints.MaxNorm(0.5))
        return keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(1)])

    x, y = batch_of(0, 0)
    expected, model = constrained(), constrained()
    expected.compile(decaying(), "mse")
    expected.fit(x, y, batch_size=2, verbose=0, shuffle=False)
    with ringar.ParameterServer(model, decaying(), shards=3) as server:
        model.compile(ringar.Downpour("sgd", server), "mse")
        model.fit(x, y, batch_size=2, verbose=0, shuffle=False)
    assert_all_close(model.variables, expected.variables)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("average", [False, True], ids=["", "use_ema"])
def test_all_ranks_end_with_the_last_weights_and_statistics(
    average: bool, rank: int, size: int
) -> None:
    keras.utils.set_random_seed(rank)
    layers = [keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    x, y = batch_of(rank, 0)
    with ringar.ParameterServer(
        model, keras.optimizers.SGD(0.05, use_ema=average), servers=[0]
    ) as server:
        before = [np.array(variable) for variable in model.variables]
        if server.is_worker:
            model.compile(ringar.Downpour(sgd(), server), "mse")
            model.fit(x + rank, y, batch_size=2, verbose=0)
    assert all((b != np.array(v)).any() for b, v in zip(before, model.variables, strict=True))
    of_ranks = ringar.allgather_object([np.array(weight) for weight in model.weights])
    for other in of_ranks[1:]:
        assert_all_close(other, of_ranks[0])
    served = list(final_values(server)[0])
    assert_all_close(served, model.trainable_variables)


def test_a_warm_start_ends_when_the_first_worker_does(size: int) -> None:
    model = dense_model()
    with ringar.ParameterServer(model, sgd()) as server:
        fit(server, model, warm_start=10 * STEPS)
    pushes = [(e.worker, e.step) for e in whole_log(server) if e.shard == 0 and e.applied]
    assert [worker for worker, _ in pushes[:STEPS]] == STEPS * [0]
    assert len(pushes) == size * STEPS - (size - 1)


def test_easgd_moves_the_center_as_the_paper_says(size: int) -> None:
    model, twin = dense_model(), dense_model()
    with ringar.ParameterServer(model, keras.optimizers.SGD(1.0)) as server:
        model.compile(ringar.EASGD(sgd(), 2, beta=0.8, server=server), "mse")
        twin.compile(sgd(), "mse")
        for worker in range(size):  # one after the other
            if worker == server.worker:
                center = server.pull()
                twin.set_weights(model.get_weights())
                for step in range(2):
                    twin.train_on_batch(*batch_of(worker, step))
                    model.train_on_batch(*batch_of(worker, step))
                moves = [
                    0.8 / size * (x - c) for x, c in zip(twin.get_weights(), center, strict=True)
                ]
                close(model.get_weights(), np.subtract, twin.get_weights(), moves)
                close(server.pull(), np.add, center, moves)
            ringar.barrier()


def test_the_end_of_an_epoch_ends_a_period_of_easgd(size: int) -> None:
    model, twin = dense_model(), dense_model()
    with ringar.ParameterServer(model, keras.optimizers.SGD(1.0), 1) as server:
        before = [np.array(v) for v in server.variables]
        model.compile(ringar.EASGD(sgd(), 2 * STEPS, beta=0.8, server=server), "mse")
        callbacks = [ringar.callbacks.Distributed()]
        model.fit(*data_of(server.worker), batch_size=8, shuffle=False, verbose=0,
                  callbacks=callbacks)  # fmt: skip
        if size == 1:
            twin.compile(sgd(), "mse")
            twin.fit(*data_of(0), batch_size=8, shuffle=False, verbose=0)
            moves = [0.8 * (x - c) for x, c in zip(twin.get_weights(), before, strict=True)]
            close(model.get_weights(), np.add, before, moves)
        model.train_on_batch(*batch_of(server.worker, 0))
    pushes = [(e.worker, e.step) for e in whole_log(server)]
    assert sorted(pushes) == [(worker, step) for worker in range(size) for step in range(2)]


def test_easgd_refuses_a_center_that_does_not_add() -> None:
    means = ringar.SoftSync(1)
    decaying = keras.optimizers.SGD(1.0, weight_decay=0.1)
    for optimizer, control in ((keras.optimizers.SGD(1.0), means), (decaying, None)):
        server = ringar.ParameterServer(dense_model(), optimizer, 1, control=control)
        with server, pytest.raises(ValueError, match="makes each push an update"):
            ringar.EASGD(sgd(), 2, server=server)


def close(result: Any, combine: Callable[..., np.ndarray], values: Any, references: Any) -> None:
    for value, first, second in zip(result, values, references, strict=True):
        np.testing.assert_allclose(value, combine(first, second), rtol=1e-5, atol=1e-6)


@pytest.mark.ranks(2, 3, 4)
def test_ranks_that_serve_only(size: int, rank: int) -> None:
    model = dense_model()
    with ringar.ParameterServer(model, sgd(), servers=[size - 1]) as server:
        assert server.is_worker == (rank < size - 1)
        if server.is_worker:
            fit(server, model, epochs=2)
        else:
            with pytest.raises(ringar.errors.MismatchError, match="a rank that works"):
                server.pull()
    assert len(server.log()) == (0 if server.is_worker else (size - 1) * 2 * STEPS)


def test_learning_rates_of_callbacks_reach_the_shards() -> None:
    model = dense_model()
    halve = keras.callbacks.LearningRateScheduler(
        lambda epoch, rate: rate if epoch == 0 else rate / 2
    )
    with ringar.ParameterServer(model, sgd()) as server:
        fit(server, model, epochs=2, callbacks=[halve])
    for shard in server.shards.values():
        assert shard.learning_rate == pytest.approx(0.025)


def test_shards_follow_a_schedule_of_their_optimizer(size: int) -> None:
    """It counts the updates of the shard; no callback of a worker changes it."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 4, 0.5)
    model = dense_model()
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    with ringar.ParameterServer(model, keras.optimizers.SGD(schedule)) as server:
        fit(server, model, callbacks=[halve])
    for shard in server.shards.values():
        assert shard.version == size * STEPS
        assert shard.learning_rate == pytest.approx(0.05 * 0.5 ** (shard.version / 4))


def test_shards_go_on_from_their_files(shared_tmp_path: Path) -> None:
    model = dense_model()
    with ringar.ParameterServer(model, adam(), 3, directory=shared_tmp_path / "s") as server:
        fit(server, model)
    before = final_values(server)
    other = dense_model()
    again = ringar.ParameterServer(other, adam(), 3, directory=shared_tmp_path / "s")
    with pytest.raises((ValueError, ringar.errors.RankError), match="a directory of its own"):
        ringar.ParameterServer(other, adam(), directory=shared_tmp_path / "s", name="second")
    equal(final_values(again), [before[number] for number in sorted(before)])
    of_ranks = ringar.allgather_object([np.array(v) for v in other.trainable_variables])
    assert all(np.array_equal(a, b) for v in of_ranks for a, b in zip(v, of_ranks[0], strict=True))
    again.close()
    with pytest.raises((ValueError, ringar.errors.RankError), match="expected a file of each of 2"):
        ringar.ParameterServer(other, adam(), 2, directory=shared_tmp_path / "s")


@pytest.mark.ranks(1)
def test_files_of_bfloat16(tmp_path: Path) -> None:
    values = [np.arange(6).reshape(2, 3).astype("bfloat16")]
    pieces = partition([Description("w", (2, 3), "bfloat16")], 1)
    source, copy = (
        asynchronous.Shard(0, start, adam(), ringar.Asynchronous(), 1)
        for start in (values, [0 * values[0]])
    )
    source.take(asynchronous.Push(0, 0, 0, values))
    ShardFiles(tmp_path, None, pieces, "server").save([source])
    ShardFiles(tmp_path, None, pieces, "server").load({0: copy}, None)
    for name, array in source.state().items():
        if name.startswith(("value", "slot")):
            np.testing.assert_array_equal(copy.state()[name], array)
    assert copy.version == 1


def test_checkpoints_of_the_first_worker(shared_tmp_path: Path, size: int) -> None:
    """They hold what the server has at the end of its epoch, and load as any file of Keras."""
    model = dense_model()
    path = shared_tmp_path / "model.keras"
    after: list[list[np.ndarray]] = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: after.append(model.get_weights())
    )
    with ringar.ParameterServer(model, sgd()) as server:
        callbacks = [keras.callbacks.ModelCheckpoint(path), note]
        fit(server, model, epochs=2, callbacks=callbacks)
    ringar.barrier()
    loaded = keras.saving.load_model(path)
    assert type(loaded.optimizer) is keras.optimizers.SGD
    of_first = ringar.broadcast_object(after[-1])
    assert_all_close(loaded.get_weights(), of_first)
    assert len(os.listdir(shared_tmp_path)) == 1


def test_histogram_in_stats(size: int) -> None:
    ringar.reset_stats()
    model = dense_model()
    with ringar.ParameterServer(model, sgd(), 1) as server:
        fit(server, model)
    statistics = ringar.stats(by="staleness")
    counts = asynchronous.staleness_histogram(server.log())
    assert [statistics[str(tau)].calls for tau in range(len(counts)) if counts[tau]] == [
        count for count in counts if count
    ]
    assert np.sum(ringar.allgather_object(int(counts.sum()))) == size * STEPS


@pytest.mark.ranks(1)
def test_a_pull_during_a_publication_has_the_one_before() -> None:
    """A header may make several updates: the version jumps, and those in between are no ones."""
    model = dense_model()
    with ringar.ParameterServer(model, sgd(), 1) as server:
        for _ in range(2):
            server.push([np.ones(v.shape, "float32") for v in server.pull()])
        before = server.pull()
        (served,) = server._service._shards
        put, pulls = server._mailboxes.data.put, []

        def slow_put(*args: Any, **kwargs: Any) -> None:
            put(*args, **kwargs)
            pulls.append(server.replica.pull())

        served.shard.version = 5  # as if three updates had been made
        served.shard._variables._variables[0].assign_add(1.0 + 0 * before[0])
        server._mailboxes.data.put = slow_put  # type: ignore[method-assign]
        served.publish()
        server._mailboxes.data.put = put  # type: ignore[method-assign]
        assert len(pulls) >= 2
        for values, versions in pulls:
            assert versions == [2]
            np.testing.assert_array_equal(values[0], before[0])
        assert server.replica.pull().versions == [5]
        np.testing.assert_allclose(server.pull()[0], before[0] + 1.0, rtol=1e-6)


def test_closing_pushes_what_has_accrued() -> None:
    model = dense_model()
    with ringar.ParameterServer(model, sgd(), 1) as server:
        model.compile(ringar.Downpour(sgd(), server, n_push=4, n_fetch=4), "mse")
        for step in range(6):
            model.train_on_batch(*batch_of(server.worker, step))
    of_ranks = ringar.allgather_object(len(server.log()))
    assert sum(of_ranks) == 2 * ringar.size()


@pytest.mark.ranks(1)
def test_a_push_of_a_worker_that_fails_replays() -> None:
    """One shard has taken it, and the other has not yet."""
    model = dense_model()
    gradients = asynchronous.gradients_of(model, batch_of)
    server = ringar.ParameterServer(model, sgd(), 2)
    before = server.new_shards([np.array(v) for v in server.variables], sgd())
    slow = server._service._shards[1]
    slow.next = lambda: None  # type: ignore[method-assign]
    server.push(gradients(0, 0, [server.pull()])[0])
    while server.shards[0].version == 0:
        time.sleep(0.001)
    with pytest.raises(InterruptedError), server:
        raise InterruptedError
    del slow.next
    server._service._mailboxes.ring(0)  # it may have looked already, and found nothing
    assert server._service.join(20)
    assert [entry.update for entry in server.log()] == [0, LOST]
    of_shards = asynchronous.gradients_of(model, batch_of)
    equal(final_values(server), asynchronous.replay(server.log(), before, of_shards))


def test_a_push_behind_the_end_is_an_error_at_once() -> None:
    model = dense_model()
    with ringar.ParameterServer(model, sgd(), 1) as server:
        model.compile(ringar.Downpour(sgd(), server), "mse")
        model.train_on_batch(*batch_of(server.worker, 0))
    with pytest.raises(Exception, match="expected a push before the server is closed"):
        model.train_on_batch(*batch_of(server.worker, 1))


def test_rows_of_equal_numbers_are_added() -> None:
    model = word_model()
    table = model.trainable_variables[0]
    with ringar.ParameterServer(model, keras.optimizers.SGD(1.0), 2) as server:
        before = np.array(table)  # a pull could have the push of a faster rank
        server.pull()
        gaps = [None] * (len(server.variables) - 1)
        misfit = asynchronous.Rows(np.array([1, 2, 3]), np.ones((2, 4), "float32"))
        with pytest.raises(ringar.errors.MismatchError, match="as many rows of"):
            server.push([misfit, *gaps])
        twice = np.array([7, 40, 7])
        server.push([asynchronous.Rows(twice, np.ones((3, 4), "float32")), *gaps])
        server.pull()
    (after,) = final_table(server, before, table)
    expected = before.copy()
    expected[7] -= 2 * ringar.size()
    expected[40] -= ringar.size()
    np.testing.assert_allclose(after, expected, rtol=1e-5)


def final_table(server: ringar.ParameterServer, before: np.ndarray, table: Any) -> list[np.ndarray]:
    """The table in the end, from the shards that have its rows."""
    values = final_values(server)
    parts = [values[number][0] for number in sorted(values)]
    rows = np.concatenate([part for part in parts if part.shape[1:] == before.shape[1:]])
    return [rows[: len(before)]]


BAD: dict[str, tuple[Callable[[keras.Model], Any], str]] = {
    "control": (
        lambda m: ringar.ParameterServer(m, sgd(), servers=None, control=ringar.BackupWorkers(9)),
        "`backups` must be less than the number of workers",
    ),
    "shards": (lambda m: ringar.ParameterServer(m, sgd(), 0), "`shards` must be 1 or more"),
    "servers": (lambda m: ringar.ParameterServer(m, sgd(), servers=[9]), "different ranks"),
    "nobody works": (
        lambda m: ringar.ParameterServer(m, sgd(), servers=range(ringar.size())),
        "leave a rank that works",
    ),
    "no optimizer": (lambda m: ringar.ParameterServer(m, "sgd"), "optimizer of Keras"),
    "global norm": (
        lambda m: ringar.ParameterServer(m, keras.optimizers.SGD(global_clipnorm=1.0), 2),
        "`global_clipnorm` must be None",
    ),
    "norm": (
        lambda m: ringar.ParameterServer(m, keras.optimizers.SGD(clipnorm=1.0), 2),
        "`clipnorm` uses norms of whole variables",
    ),
    "lamb": (
        lambda m: ringar.ParameterServer(m, keras.optimizers.Lamb(), 2),
        "Lamb uses norms of whole variables",
    ),
    "log": (
        lambda m: ringar.ParameterServer(m, sgd(), log_size=-1),
        "`log_size` must be 0 or more",
    ),
    "nothing": (lambda m: ringar.ParameterServer([], sgd()), "at least one variable"),
    "not built": (
        lambda m: ringar.ParameterServer(keras.Sequential([keras.layers.Dense(1)]), sgd()),
        "a model that is built",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case: str) -> None:
    act, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        act(dense_model())


@pytest.mark.ranks(2)
def test_dedicated_servers_need_all_ranks() -> None:
    process_set = ringar.add_process_set([0])
    if ringar.rank() == 0:
        with pytest.raises(ValueError, match="`servers` needs all ranks of the job"):
            ringar.ParameterServer(dense_model(), sgd(), servers=[0], process_set=process_set)
    ringar.remove_process_set(process_set)


def test_bad_pushes_leave_the_server_usable() -> None:
    model = dense_model()
    with ringar.ParameterServer(model, sgd(), 2) as server:
        gradients = [np.ones(v.shape, "float32") for v in model.trainable_variables]
        with pytest.raises(ringar.errors.MismatchError, match="a pull before the first push"):
            server.push(gradients)
        server.pull()
        with pytest.raises(ringar.errors.MismatchError, match="gradient of .* of shape"):
            server.push([gradients[0][:1], *gradients[1:]])
        with pytest.raises(ringar.errors.MismatchError, match="gradients"):
            server.push(gradients[:1])
        with pytest.raises(ValueError, match="`n_push` must be a number of steps, 1 or more"):
            ringar.Downpour(sgd(), server, n_push=0)
        with pytest.raises(
            ValueError, match=r"must have the optimizer keras.optimizers.SGD\(1.0\)"
        ):
            ringar.EASGD(sgd(), 2, server=server)
        other = dense_model()
        other.compile(ringar.Downpour(sgd(), server), "mse")
        with pytest.raises(ringar.errors.MismatchError, match="variables that are served"):
            other.train_on_batch(*batch_of(0, 0))
        server.push(gradients)


@pytest.mark.parametrize(
    ("control", "options", "message"),
    [
        (ringar.HardSync(), {"n_fetch": 2}, "needs gradients of the newest version"),
        (ringar.BackupWorkers(0), {"overlap": True}, "needs gradients of the newest version"),
        (ringar.StaleSynchronous(2), {"warm_start": 9}, "`warm_start` must be 0 with"),
    ],
    ids=str,
)
def test_controls_that_wait_refuse_what_would_hang(
    control: asynchronous.StalenessControl, options: dict[str, Any], message: str
) -> None:
    server = ringar.ParameterServer(dense_model(), sgd(), 1, control=control)
    with server, pytest.raises(ValueError, match=message):
        ringar.Downpour(sgd(), server, **options)


@pytest.mark.ranks(2, 3)
def test_other_variables_on_a_rank_are_an_error_on_all(rank: int) -> None:
    width = 2 if rank == 0 else 3
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(width)])
    refusal = r"rank \d \| ringar.ParameterServer: expected the same variable 0 on every rank"
    with pytest.raises(ValueError, match=refusal):
        ringar.ParameterServer(model, sgd())
