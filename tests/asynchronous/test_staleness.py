"""Staleness controls: each rule against NumPy, in hand-written schedules and in simulated ones."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from ringar.asynchronous.log import DROPPED, HELD, Entry, staleness_histogram
from ringar.asynchronous.replay import simulate
from ringar.asynchronous.shard import Push, Rows, Shard
from ringar.asynchronous.staleness import (
    UNLIMITED,
    Asynchronous,
    BackupWorkers,
    HardSync,
    SoftSync,
    StalenessControl,
    StaleSynchronous,
)
from ringar.errors import MismatchError
from tests.asynchronous import workers
from tests.asynchronous.workers import push, vector_shard
from tests.comparison import assert_all_close
from tests.plugin import fast_if

pytestmark = pytest.mark.ranks(1)

OPTIMIZERS = [
    *("Adagrad", "Adam", "SGD"),
    *(
        fast_if(False, name)
        for name in (
            *("Adadelta", "Adafactor", "AdamW", "Adamax", "Ftrl", "Lamb", "Lion", "Muon"),
            *("Nadam", "RMSprop"),
        )
        if hasattr(keras.optimizers, name)
    ),
]


def value(shard: Shard) -> list[float]:
    return [float(x) for x in shard.values()[0]]


def simulated(control: StalenessControl, count: int = 4, steps: int = 6, **options: Any) -> Any:
    """The shard after a simulated run."""
    (shard,) = workers.make_shards(1, control, count, options.pop("optimizer", workers.sgd))
    simulate([shard], workers.of_shards, count, workers.exponential, 0, steps, **options)
    return shard


@pytest.mark.parametrize("rate", ["constant", "staleness"])
def test_asynchronous(rate: Any) -> None:
    shard = vector_shard(Asynchronous(rate), 3)
    versions = [0, 0, 0, 1, 4]  # staleness 0, 1, 2, 2, 0
    expected = np.zeros(2, np.float32)
    for update, version in enumerate(versions):
        gradient = np.array([1 + update, -update], np.float32)
        assert shard.take(push(update % 3, update // 3, version, *gradient))
        factor = 1 if rate == "constant" else 1 / max(update - version, 1)
        expected -= np.float32(factor) * gradient
        np.testing.assert_allclose(shard.values()[0], expected, rtol=1e-6)
    assert shard.version == 5
    assert [entry.staleness for entry in shard.log] == [0, 1, 2, 2, 0]
    assert shard.log[3] == Entry(3, 0, 0, 1, 1, 2, True, 3)
    assert shard.limit(0) == UNLIMITED
    assert staleness_histogram(shard.log).tolist() == [2, 1, 2]
    assert shard.staleness == {0: 2, 1: 1, 2: 2}


def test_a_factor_multiplies_the_rate_and_not_the_gradient() -> None:
    """For Adam they differ: its first step has the length of the rate."""
    shard = vector_shard(Asynchronous("staleness"), 3, keras.optimizers.Adam(0.5))
    optimizer, variable = keras.optimizers.Adam(0.5), keras.Variable(np.zeros(2, np.float32))
    for step, rate in enumerate([0.5, 0.5, 0.25]):  # staleness 0, 1, 2
        gradient = np.array([1 + step, 0.1], np.float32)
        shard.take(Push(step, 0, 0, [gradient]))
        optimizer.learning_rate = rate
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
    np.testing.assert_array_equal(shard.values()[0], np.array(variable))
    assert shard.learning_rate == 0.5


@pytest.mark.parametrize("rate", ["constant", "staleness"])
def test_soft_sync(rate: Any) -> None:
    """5 workers with n = 2 make c = 2 gradients an update."""
    shard = vector_shard(SoftSync(2, rate), 5)
    versions = [0, 0, 0, 0, 0, 1]
    changes = [shard.take(push(w % 5, w // 5, v, w + 1.0, 0)) for w, v in enumerate(versions)]
    assert changes == [False, True] * 3
    factors = np.array([1, 1, 1, 1, 1 / 2, 1] if rate == "staleness" else [1] * 6)
    products = factors * np.arange(1, 7)
    assert value(shard)[0] == pytest.approx(-products.reshape(3, 2).mean(1).sum(), rel=1e-6)
    assert [entry.update for entry in shard.log] == [0, 0, 1, 1, 2, 2]
    assert [entry.staleness for entry in shard.log] == [0, 0, 1, 1, 2, 1]


def test_soft_sync_of_all_workers_is_asynchronous() -> None:
    for rate in ("constant", "staleness"):
        soft, plain = simulated(SoftSync(4, rate)), simulated(Asynchronous(rate))
        assert soft.log == plain.log
        assert workers.equal_bits([soft.values()], [plain.values()])


def test_soft_sync_has_the_staleness_n_in_the_mean() -> None:
    shard = simulated(SoftSync(1), count=8, steps=20)
    counts = staleness_histogram(shard.log)
    assert 0.7 < np.average(np.arange(len(counts)), weights=counts) < 1.3
    assert counts.sum() == 160


@pytest.mark.parametrize("optimizer", [workers.sgd, workers.adam])
def test_hard_sync_is_synchronous_training(optimizer: Any) -> None:
    """With the mean of all workers' gradients, as of the batch of all together."""
    shard = simulated(HardSync(), optimizer=optimizer)
    reference, variables = optimizer(), [keras.Variable(array) for array in workers.initial()]
    for step in range(6):
        values = [np.array(variable) for variable in variables]
        pushes = [workers.gradients(worker, step, values) for worker in range(4)]
        table = np.zeros_like(values[2])
        for gradients in pushes:
            np.add.at(table, gradients[2].indices, gradients[2].values)
        means = [sum(g[0] for g in pushes) / 4, sum(g[1] for g in pushes) / 4, table / 4]
        reference.apply([keras.ops.convert_to_tensor(mean) for mean in means], variables)
    for value, expected in zip(shard.values(), variables, strict=True):
        np.testing.assert_allclose(value, np.array(expected), rtol=1e-5, atol=1e-6)
    assert shard.version == 6
    assert staleness_histogram(shard.log).tolist() == [24]


def test_hard_sync_does_not_depend_on_the_order_of_arrival() -> None:
    gradients = [(0.1, 3e8), (0.3, 1.0), (0.7, -3e8)]
    results = set()
    for order in [(0, 1, 2), (2, 0, 1), (1, 2, 0)]:
        shard = vector_shard(HardSync(), 3)
        assert [shard.take(push(w, 0, 0, *gradients[w])) for w in order] == [False, False, True]
        results.add(shard.values()[0].tobytes())
    assert len(results) == 1


def test_hard_sync_waits() -> None:
    shard = vector_shard(HardSync(), 2)
    assert (shard.limit(0), shard.limit(1)) == (1, 1)
    shard.take(push(0, 0, 0, 1, 1))
    assert (shard.limit(0), shard.limit(1)) == (1, 1)
    assert shard.log[0].update == HELD
    with pytest.raises(MismatchError, match=r"Worker 0 pushed step 1 without waiting.*HardSync"):
        shard.take(push(0, 1, 0, 1, 1))
    shard.take(push(1, 0, 0, 3, 1))
    assert (shard.limit(0), shard.limit(1)) == (2, 2)
    assert value(shard) == [-2, -1]
    with pytest.raises(MismatchError, match=r"from version 0\. With HardSync.*Expected: version 1"):
        shard.take(push(0, 1, 0, 1, 1))


def test_stale_synchronous_with_bound_0_is_bulk_synchronous() -> None:
    """All compute from the pushes of the steps before, and each push is a step of SGD."""
    shard = simulated(StaleSynchronous(0))
    values = workers.initial()
    for step in range(6):
        pushes = [workers.gradients(worker, step, values) for worker in range(4)]
        values = [value.copy() for value in values]
        for weights, biases, rows in pushes:
            values[0] -= np.float32(0.1) * weights
            values[1] -= np.float32(0.1) * biases
            values[2][rows.indices] -= np.float32(0.1) * rows.values
    assert_all_close(shard.values(), values, rtol=1e-5, atol=1e-6)
    assert {entry.version for entry in shard.log} == {0, 4, 8, 12, 16, 20}


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_stale_synchronous_bounds_the_distance(bound: int) -> None:
    """No worker begins a step before all have made those that it has to see, and it sees them."""
    shard = simulated(StaleSynchronous(bound), steps=12)
    furthest = 0
    for entry in shard.log:
        updates = {(e.worker, e.step): e.update for e in shard.log}
        for worker in range(4):
            for step in range(entry.step - bound):
                assert updates[worker, step] < entry.version
        counts = {w: sum(e.worker == w for e in shard.log[: entry.sequence]) for w in range(4)}
        furthest = max(furthest, entry.step - min(counts.values()))
    assert furthest == bound


def test_stale_synchronous_waits() -> None:
    shard = vector_shard(StaleSynchronous(1), 2)
    assert shard.take(push(0, 0, 0, 1, 0))
    assert shard.limit(0) == 2
    assert not shard.take(push(0, 1, 1, 1, 0))  # worker 1 may not see it in its step 0
    assert shard.limit(0) == 2
    assert shard.take(push(1, 0, 0, 1, 0))
    assert (shard.limit(0), shard.version, value(shard)) == (3, 3, [-3, 0])
    assert [entry.update for entry in shard.log] == [0, 2, 1]


def test_backup_workers_drop_late_gradients() -> None:
    shard = vector_shard(BackupWorkers(1), 3)
    assert not shard.take(push(2, 0, 0, 1, 0))
    assert shard.take(push(0, 0, 0, 2, 0))
    assert not shard.take(push(1, 0, 0, 100, 0))  # late
    assert value(shard) == [-1.5, 0]
    entry = shard.log[2]
    assert (entry.applied, entry.update, entry.staleness) == (False, DROPPED, 1)
    assert [shard.limit(worker) for worker in range(3)] == [2, 2, 2]
    assert not shard.take(push(1, 1, 1, 1, 0))
    assert shard.limit(1) == 2
    assert shard.take(push(0, 1, 1, 1, 0))
    assert value(shard) == [-2.5, 0]


def test_simulated_backup_workers() -> None:
    shard = simulated(BackupWorkers(1), count=5, steps=10)
    counts: dict[int, int] = {}
    for entry in shard.log:
        if entry.applied:
            assert entry.staleness == 0
            counts[entry.update] = counts.get(entry.update, 0) + 1
    assert {counts[update] for update in range(8)} == {4}
    slow = [entry for entry in shard.log if entry.worker == 0]
    assert any(not entry.applied for entry in slow)


def test_without_backups_it_is_hard_sync() -> None:
    hard, backup = simulated(HardSync()), simulated(BackupWorkers(0))
    assert workers.equal_bits([hard.values()], [backup.values()])


def test_nobody_waits_for_a_worker_that_has_left() -> None:
    hard = vector_shard(HardSync(), 3)
    hard.take(push(0, 0, 0, 1, 0))
    hard.take(push(1, 0, 0, 3, 0))
    assert not hard.leave(0)  # its push counts
    assert hard.leave(2)
    assert not hard.leave(2)
    assert (hard.version, value(hard)) == (1, [-2, 0])
    assert hard.take(push(1, 1, 1, 1, 0))

    soft = vector_shard(SoftSync(1), 3)
    soft.take(push(0, 0, 0, 1, 0))
    soft.take(push(0, 1, 0, 1, 0))
    assert soft.leave(1)
    assert soft.version == 1

    stale = vector_shard(StaleSynchronous(0), 2)
    stale.take(push(0, 0, 0, 1, 0))
    assert stale.limit(0) == 1
    assert stale.leave(1)
    assert stale.limit(0) == 2
    stale.leave(0)
    assert stale.limit(0) >= UNLIMITED

    backup = vector_shard(BackupWorkers(1), 3)
    backup.take(push(0, 0, 0, 1, 0))
    assert not backup.leave(1)  # there are two left for N = 2
    assert backup.leave(2)
    with pytest.raises(MismatchError, match=r"Worker 2 pushed step 0 after it had left"):
        backup.take(push(2, 0, 1, 1, 0))


def test_rows_and_dense_gradients_of_one_update() -> None:
    """The mean of rows has the rows of all; with a dense gradient it is dense; None is zero."""
    rows = [Rows(np.array(at, np.int64), np.ones((len(at), 2), np.float32)) for at in ([3, 0], [3])]
    dense = np.full((4, 2), 3, np.float32)
    expected = {
        (0, 1): [-0.5, 0, 0, -1],
        (0, 2): [-2, -1.5, -1.5, -2],
        (1, 3): [0, 0, 0, -0.5],
        (3, 3): [0, 0, 0, 0],
    }
    choice: list[Any] = [*rows, dense, None]
    for (first, second), result in expected.items():
        sgd = keras.optimizers.SGD(1.0)
        shard = Shard(0, [np.zeros((4, 2), np.float32)], sgd, SoftSync(1), 2)
        shard.take(Push(0, 0, 0, [choice[first]]))
        assert shard.take(Push(1, 0, 0, [choice[second]]))
        np.testing.assert_array_equal(shard.values()[0], np.array([result, result]).T)
        assert shard.version == 1


def test_lazy_rows_equal_dense_ones() -> None:
    """An optimizer gets rows as Keras hands them over: for SGD others stay as they are."""
    (rows,) = workers.make_shards(1, Asynchronous(), 1)
    (dense,) = workers.make_shards(1, Asynchronous(), 1)
    for step in range(3):
        gradients = workers.gradients(0, step, rows.values())
        rows.take(Push(0, step, step, gradients))
        table = np.zeros_like(workers.initial()[2])
        table[gradients[2].indices] = gradients[2].values
        dense.take(Push(0, step, step, [*gradients[:2], table]))
    assert workers.equal_bits([rows.values()], [dense.values()])


@pytest.mark.parametrize(
    "control", [Asynchronous("staleness"), SoftSync(1), HardSync(), StaleSynchronous(1)], ids=str
)
def test_a_loaded_state_goes_on_bit_for_bit(control: StalenessControl) -> None:
    """After each push, also with pushes that are held."""
    (shard,) = workers.make_shards(1, control, 3, workers.adam)
    original = shard.values()
    order = [0, 1, 2, 2, 1, 0, 0, 2, 1]
    steps = [0, 0, 0]
    for worker in order:
        (other,) = workers.make_shards(1, control, 3, workers.adam)
        other.load({name: array.copy() for name, array in shard.state().items()})
        assert [other.limit(w) for w in range(3)] == [shard.limit(w) for w in range(3)]
        gradients = workers.gradients(worker, steps[worker], original)
        version = max(0, shard.version - (0 if isinstance(control, HardSync) else 1))
        next_push = Push(worker, steps[worker], version, gradients)
        assert shard.take(next_push) == other.take(next_push)
        steps[worker] += 1
        assert other.log[-1] == shard.log[-1]
        states = [twin.state() for twin in (shard, other)]
        assert workers.equal_bits(*[[list(state.values())] for state in states])
    assert shard.version >= 3


def test_a_push_may_be_overwritten_after_it_was_taken() -> None:
    shard = vector_shard(HardSync(), 2)
    gradient = np.ones(2, np.float32)
    shard.take(Push(0, 0, 0, [gradient]))
    gradient[:] = 100
    shard.take(Push(1, 0, 0, [np.ones(2, np.float32)]))
    assert value(shard) == [-1, -1]


def test_a_restart_with_other_workers() -> None:
    shard = vector_shard(HardSync(), 2)
    shard.take(push(0, 0, 0, 1, 0))
    shard.take(push(1, 0, 0, 1, 0))
    shard.take(push(0, 1, 1, 100, 0))
    other = vector_shard(HardSync(), 3)
    with pytest.raises(ValueError, match=r"has 2 workers. Expected: 3.*restart=True"):
        other.load(shard.state())
    other.load(shard.state(), restart=True)
    assert (other.version, other.pushes(0), value(other)) == (1, 0, [-1, 0])
    assert [other.take(push(worker, 0, 1, 3, 0)) for worker in range(3)] == [False, False, True]
    assert value(other) == [-4, 0]
    larger = Shard(0, [np.zeros(3, np.float32)], workers.sgd(), HardSync(), 2)
    with pytest.raises(ValueError, match=r"variables of the shapes \[\(2,\)\]. Expected"):
        larger.load(shard.state())


def test_learning_rates() -> None:
    shard = vector_shard(Asynchronous(), 1)
    shard.take(push(0, 0, 0, 1, 0))
    shard.learning_rate = 0.5
    shard.learning_rate = 0.5
    shard.take(push(0, 1, 1, 1, 0))
    assert value(shard) == [-1.5, 0]
    assert (shard.learning_rate, shard.rates) == (0.5, [(1, 0.5)])

    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.25])
    shard = vector_shard(Asynchronous("staleness"), 1, keras.optimizers.SGD(schedule))
    for step in range(3):
        shard.take(push(0, step, 0, 1, 0))
    assert value(shard) == [-1.375, 0]  # 1, 1/4 and half of 1/4


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_takes_the_steps_of_keras(name: str) -> None:
    """With one worker; also a step without gradients, and one with those of one variable."""
    optimizer, reference = (getattr(keras.optimizers, name)(learning_rate=0.05) for _ in range(2))
    values = [np.full((4, 2), 2, np.float32), np.ones(2, np.float32)]
    variables = [keras.Variable(value) for value in values]
    names = ["dense/kernel", "dense/bias"]
    shard = Shard(0, values, optimizer, Asynchronous(), 1, names)
    reference.build(variables)
    for step, chosen in enumerate([(0, 1), (0,), (), (0, 1)]):
        rng = np.random.default_rng(step)
        gradients = [rng.normal(size=value.shape).astype(np.float32) for value in values]
        shard.take(
            Push(0, step, step, [g if i in chosen else None for i, g in enumerate(gradients)])
        )
        if chosen:
            tensors = [keras.ops.convert_to_tensor(gradients[i]) for i in chosen]
            reference.apply(tensors, [variables[i] for i in chosen])
        else:
            reference.iterations.assign_add(1)
    for value, variable in zip(shard.values(), variables, strict=True):
        np.testing.assert_allclose(value, np.array(variable), rtol=1e-5)


def test_weight_decay_knows_names() -> None:
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    values = [np.ones(2, np.float32), np.ones(2, np.float32)]
    names = ["dense/kernel", "dense/bias"]
    shard = Shard(0, values, optimizer, Asynchronous(), 1, names)
    shard.take(Push(0, 0, 0, [np.zeros(2, np.float32)] * 2))
    kernel, bias = shard.values()
    np.testing.assert_allclose(kernel, [0.95, 0.95])
    np.testing.assert_array_equal(bias, [1, 1])


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        ([], r"worker 0, step 0, to shard 0 has 0 gradients. Expected: 2"),
        ([np.zeros((4, 3), "f4"), None], r"`dense/kernel` .*shape \[4, 3\]. Expected: \[4, 2\]"),
        ([np.zeros((4, 2)), None], r"dtype float64. Expected: float32"),
        ([Rows(np.array([4]), np.zeros((1, 2), "f4")), None], r"rows 4 to 4.*from 0 to 3"),
        ([Rows(np.array([1]), np.zeros((2, 2), "f4")), None], r"shape \[2, 2\]. Expected: \[1, 2"),
        ([None, Rows(np.array([0]), np.zeros(1, "f4"))], r"`scale` that does not fit"),
    ],
)
def test_gradients_that_do_not_fit(gradients: list[Any], message: str) -> None:
    values = [np.zeros((4, 2), np.float32), np.zeros((), np.float32)]
    shard = Shard(0, values, workers.sgd(), Asynchronous(), 1, ["dense/kernel", "scale"])
    with pytest.raises(MismatchError, match=message):
        shard.take(Push(0, 0, 0, gradients))
    assert (shard.version, shard.log, shard.pushes(0)) == (0, [], 0)


@pytest.mark.parametrize(
    ("next_push", "message"),
    [
        (push(2, 0, 0, 1, 1), r"Worker 2 pushed, which does not exist.*from 0 to 1"),
        (push(0, 0, -1, 1, 1), r"Worker 0 pushed step 0 before its first pull"),
        (push(0, 0, 1, 1, 1), r"from version 1, which is in the future. Expected: .* 0 to 0"),
        (push(0, 1, 0, 1, 1), r"Worker 0 pushed step 1. Expected: step 0"),
    ],
)
def test_pushes_that_cannot_come(next_push: Push, message: str) -> None:
    shard = vector_shard(Asynchronous(), 2)
    with pytest.raises(MismatchError, match=message):
        shard.take(next_push)
    assert shard.take(push(0, 0, 0, 1, 1))


def test_arguments() -> None:
    with pytest.raises(ValueError, match=r"`n` must be a positive number.*n=0"):
        SoftSync(0)
    with pytest.raises(ValueError, match=r"at most the number of workers.*n=5, workers=4"):
        vector_shard(SoftSync(5), 4)
    with pytest.raises(ValueError, match=r"`rate` must be .*rate='fast'"):
        Asynchronous("fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"0 or more. Received: bound=-1"):
        StaleSynchronous(-1)
    with pytest.raises(ValueError, match=r"0 or more. Received: backups=-1"):
        BackupWorkers(-1)
    with pytest.raises(ValueError, match=r"less than the number.*backups=2, workers=2"):
        vector_shard(BackupWorkers(2), 2)
    with pytest.raises(ValueError, match=r"`workers` must be a positive.*workers=0"):
        vector_shard(HardSync(), 0)
    scaled = keras.optimizers.LossScaleOptimizer(workers.sgd())
    with pytest.raises(ValueError, match=r"must not scale the loss"):
        vector_shard(HardSync(), 1, scaled)
    built = workers.sgd()
    built.build([keras.Variable(np.zeros(2))])
    with pytest.raises(ValueError, match=r"must not be built"):
        vector_shard(HardSync(), 1, built)
    with pytest.raises(ValueError, match=r"`names` must have.*1 names, 0 arrays"):
        Shard(0, [], workers.sgd(), HardSync(), 1, ["w"])
    assert staleness_histogram([]).tolist() == []
