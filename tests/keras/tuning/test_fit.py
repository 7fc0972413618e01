"""Autotune in `fit`: what stays by a clock that is scripted, and the same bits as without it."""

from __future__ import annotations

import csv
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import ringar
from ringar.job import place
from ringar.keras import tuned
from ringar.keras.buckets import Spec
from ringar.keras.tuned import DEFAULTS, Settings
from ringar.keras.tuning import clock as clocks
from ringar.keras.tuning import fit as tuning
from ringar.keras.tuning import options
from ringar.keras.tuning.space import Job
from ringar.keras.tuning.tuner import Tuner
from tests.keras import common
from tests.keras.tuning.short import LENGTHS, STEPS, data, layers
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")


class Clock:
    """Tell the time of steps that take as long as `cost` says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.model: keras.Model | None = None
        self.cost: Callable[[Settings], float] = fast_if_small

    def __call__(self) -> float:
        assert self.model is not None
        self.now += self.cost(tuned.of(self.model))
        return self.now


def fast_if_small(settings: Settings) -> float:
    """The smaller the first bucket, the faster; the defaults are the slowest."""
    return 2.0 if settings == DEFAULTS else 1.0 + (settings.first_bucket_bytes or 0) / 2**28


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock in the place of the computer's, and the options of a short search."""
    fake_clock = Clock()
    monkeypatch.setattr(clocks, "now", fake_clock)
    for name, value in LENGTHS.items():
        monkeypatch.setenv(f"RINGAR_AUTOTUNE_{name}", value)
    return fake_clock


def optimizer(**options: Any) -> keras.optimizers.Optimizer:
    return ringar.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9), **options)


def train(model: keras.Model, *extra_callbacks: Any, steps: int = STEPS, **options: Any) -> None:
    callbacks = [ringar.callbacks.Distributed(), *extra_callbacks]
    x, y = data(steps)
    model.fit(x, y, batch_size=2, shuffle=False, verbose=0, callbacks=callbacks, **options)


def tuned_and_untuned(
    make: Callable[[], keras.Model], clock: Clock, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> keras.Model:
    """Train with and without Autotune; compare all bits of weights and optimizer."""
    plain = make()
    train(plain, **options)
    monkeypatch.setenv("RINGAR_AUTOTUNE", "1")
    clock.model = model = make()
    train(model, **options)
    assert common.digest(model) == common.digest(plain)
    return model


def compiled(**options: Any) -> Callable[[], keras.Model]:
    def make() -> keras.Model:
        model = layers()
        model.compile(optimizer(), "mse", **options)
        return model

    return make


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.ranks(2, 3)
def test_the_fastest_settings_stay_and_weights_have_the_same_bits(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, shared_tmp_path: Path, caplog: Any
) -> None:
    log = shared_tmp_path / "log.csv"
    monkeypatch.setenv("RINGAR_AUTOTUNE_LOG", str(log))
    with caplog.at_level(logging.INFO, "ringar"):
        model = tuned_and_untuned(compiled(), clock, monkeypatch, epochs=2)
    rows = rows_of(log)
    samples = [row for row in rows if row["phase"] == "search"]
    fastest = min(samples, key=lambda row: float(row["seconds"]))
    chosen = tuned.of(model)
    assert [row["phase"] for row in rows] == [
        "warm-up", *["search"] * 3, *["compare"] * 10, "chosen"
    ]  # fmt: skip
    sizes = [chosen.bucket_bytes, chosen.first_bucket_bytes]
    for row in (fastest, rows[-1]):
        columns = [row["bucket_bytes"], row["first_bucket_bytes"]]
        assert columns == [str(size or "default") for size in sizes]
    assert chosen != DEFAULTS
    assert float(rows[0]["seconds"]) == fast_if_small(DEFAULTS)
    assert float(rows[-1]["seconds"]) == pytest.approx(fast_if_small(chosen), rel=1e-5)
    texts = [record.message for record in caplog.records if "Autotune: tried 3" in record.message]
    assert len(texts) == (ringar.rank() == 0)
    # Another training goes on with what was found, and begins no search.
    train(model)
    assert tuned.of(model) == chosen
    assert len(rows_of(log)) == len(rows)


@pytest.mark.slow
@pytest.mark.ranks(2, 3)
def test_the_defaults_stay_where_they_are_the_fastest(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.cost = lambda settings: 1.0 + (settings != DEFAULTS)
    model = tuned_and_untuned(compiled(), clock, monkeypatch, epochs=2)
    assert tuned.of(model) == DEFAULTS
    tuner = tuning.of(model)
    assert tuner is not None
    assert tuner.is_done


class WithTape(keras.Sequential):
    """Reduce by a tape, and apply with a plain optimizer."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with ringar.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def with_tape() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = WithTape(layers().layers)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def sharded() -> keras.Model:
    model = layers()
    model.compile(optimizer(shard="gradients"), "mse")
    return model


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    "make",
    [
        with_tape,
        fast_if(False, sharded),
        fast_if(False, compiled(run_eagerly=True)),
        fast_if(False, compiled(jit_compile=True)),
        compiled(steps_per_execution=2),
    ],
)
def test_other_steps_have_the_same_bits(
    make: Callable[[], keras.Model], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tuned_and_untuned(make, clock, monkeypatch, epochs=4)
    assert tuned.of(model) != DEFAULTS


@pytest.mark.slow
@pytest.mark.ranks(2, 3)
def test_ranks_may_have_different_numbers_of_steps(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 8 - 3 * (ringar.rank() == 1)
    model = tuned_and_untuned(compiled(), clock, monkeypatch, steps=steps, epochs=30)
    assert tuned.of(model) != DEFAULTS


@pytest.mark.ranks(2, 3)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("steps_per_execution", [1, fast_if(False, 2)])
def test_the_data_of_a_rank_may_end_before_the_steps_of_the_epoch(
    steps_per_execution: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others do not know it, and come to the ends of windows while this rank joins them."""
    make = compiled(steps_per_execution=steps_per_execution)
    steps = 14 - 7 * (ringar.rank() == 1)
    model = tuned_and_untuned(make, clock, monkeypatch, steps=steps, steps_per_epoch=14, epochs=3)
    assert ringar.allgather_object(common.digest(model)) == [common.digest(model)] * ringar.size()
    tuner = tuning.of(model)
    assert tuner is not None
    assert tuner.progress[-1] != 0  # the windows that have ended


class Stop(keras.callbacks.Callback):
    """Stop behind a batch, on one rank."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self.batch and ringar.rank() == ringar.size() - 1:
            self.model.stop_training = True


@pytest.mark.ranks(2, 3)
def test_a_rank_may_stop_at_any_batch_of_a_window(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the others have come to the end of a window; the search goes on later."""
    monkeypatch.setenv("RINGAR_AUTOTUNE", "1")
    clock.model = model = compiled()()
    for batch in [1, *range(3, 10), 30, 30, 30]:
        train(model, Stop(batch))  # which compares weights at its end
    tuner = tuning.of(model)
    assert tuner is not None
    state = (common.digest(model), tuner.progress)
    assert ringar.allgather_object(state) == [state] * ringar.size()
    assert tuner.is_done
    assert tuned.of(model) != DEFAULTS


@pytest.mark.ranks(2)
def test_a_job_of_the_same_kind_begins_with_what_was_found(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, shared_tmp_path: Path, caplog: Any
) -> None:
    path, log = shared_tmp_path / "settings.json", shared_tmp_path / "log.csv"
    monkeypatch.setenv("RINGAR_AUTOTUNE_SETTINGS", str(path))
    monkeypatch.setenv("RINGAR_AUTOTUNE_LOG", str(log))
    monkeypatch.setenv("RINGAR_AUTOTUNE", "1")
    clock.model = first = compiled()()
    train(first, epochs=2)
    settings = tuned.of(first)
    rows = len(rows_of(log))
    clock.model = model = compiled()()
    with caplog.at_level(logging.INFO, "ringar"):
        train(model)
    assert tuned.of(model) == settings != DEFAULTS
    assert len(rows_of(log)) == rows
    assert [r.message for r in caplog.records if "Autotune" in r.message] == (
        [f"Autotune: took {settings} from {path}."] if ringar.rank() == 0 else []
    )
    # A model with other variables is another job.
    caplog.clear()
    clock.model = other = layers()
    other.add(keras.layers.Dense(1))
    other.compile(optimizer(), "mse")
    with caplog.at_level(logging.INFO, "ringar"):
        train(other)
    messages = [r.message for r in caplog.records if "Autotune" in r.message]
    assert len(rows_of(log)) > rows
    if ringar.rank() == 0:
        assert messages[0] == f"Autotune: {path} has no settings for this job; they are searched."


@pytest.mark.ranks(2, 3)
def test_what_is_not_tuned_says_why_on_one_rank(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setenv("RINGAR_AUTOTUNE", "1")
    local = common.dense_model()
    local.compile(ringar.LocalSGD("sgd", period=2), "mse")
    train(local)
    model, one_step = compiled()(), compiled()()
    x, y = data(4)
    batches = ((x[i : i + 2], y[i : i + 2]) for i in range(0, 8, 2))
    model.fit(batches, verbose=0, callbacks=[ringar.callbacks.Distributed()])
    train(one_step, steps=1)
    messages = [record.message for record in caplog.records if "Autotune" in record.message]
    if ringar.rank() > 0:
        assert not messages
        return
    reasons = ("in every step", "pass `steps_per_epoch`", "an epoch has one step")
    assert len(messages) == 3
    for message, reason in zip(messages, reasons, strict=True):
        assert message.startswith("Autotune: the defaults stay: ")
        assert reason in message


@pytest.mark.ranks(2, 3)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_search_that_has_not_ended_says_so_and_leaves_no_trial_behind(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """A training that is not tuned has the defaults, and the next one goes on with the search."""
    monkeypatch.setenv("RINGAR_AUTOTUNE", "1")
    clock.model = model = compiled()()
    for steps in (9, 5):
        train(model, steps=steps)
    assert tuned.of(model) != DEFAULTS
    messages = [r.message for r in caplog.records if "has ended before the search" in r.message]
    assert len(messages) == (ringar.rank() == 0)
    assert all("after 2 of at most 14 samples of 2 steps" in message for message in messages)
    tuner = tuning.of(model)
    assert tuner is not None
    measured = tuner.progress[-1]
    x, y = data(4)
    batches = ((x[i : i + 2], y[i : i + 2]) for i in range(0, 8, 2))
    model.fit(batches, verbose=0, callbacks=[ringar.callbacks.Distributed()])
    assert tuned.of(model) == DEFAULTS
    train(model, epochs=2)
    assert tuner.is_done
    assert tuning.of(model) is tuner
    assert tuner.progress[-1] == 14 != measured
    assert tuned.of(model) != DEFAULTS


@pytest.mark.ranks(4)
def test_hosts_are_those_of_the_ranks_that_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where none of them is the first rank of its host."""
    ranks = ringar.add_process_set([1, 3])
    monkeypatch.setattr(place, "hosts", lambda: [0, 0, 1, 1])
    if ringar.rank() in ranks.ranks:
        job = Job(2, 1, tuple(Spec.of(weight) for weight in layers().weights))
        assert Tuner(job, options.Options(), ranks, clocks.now).job.hosts == 2
    ringar.remove_process_set(ranks)


def expected_error(name: str, rank: int, monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """Prepare what is wrong, and return what the error must say."""
    monkeypatch.setenv("RINGAR_AUTOTUNE", "1")
    if name == "some":
        if rank == 1:
            monkeypatch.delenv("RINGAR_AUTOTUNE")
        return r"(?s)the same options of Autotune on every rank; .*ranks? 0.*none \(rank 1\)"
    if name == "option":
        monkeypatch.setenv("RINGAR_AUTOTUNE_STEPS_PER_SAMPLE", "none")
        return "RINGAR_AUTOTUNE_STEPS_PER_SAMPLE must be a whole number"
    begin = rf"rank {rank} \| Autotune: rank 0 could not begin: .*"
    if name == "optuna":
        monkeypatch.setitem(sys.modules, "optuna", None)
        return begin + r"pip install optuna"
    if name == "log":
        monkeypatch.setenv("RINGAR_AUTOTUNE_LOG", str(folder))
        return begin + "expected a log that can be written"
    path = folder / "settings.json"
    if name == "folder":
        path = folder / "settings.json" / "below"
    monkeypatch.setenv("RINGAR_AUTOTUNE_SETTINGS", str(path))
    (folder / "settings.json").write_text("no settings")
    return begin + "expected a file of settings"


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("name", ["some", "option", "optuna", "log", "settings", "folder"])
def test_what_is_wrong_is_an_error_on_every_rank_before_the_first_step(
    name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, shared_tmp_path: Path, rank: int
) -> None:
    message = expected_error(name, rank, monkeypatch, shared_tmp_path)
    clock.model = model = compiled()()
    before = common.values(model)
    kind = ringar.errors.UnsupportedError if name == "optuna" else ValueError
    with pytest.raises(kind, match=message):
        train(model)
    assert common.largest_difference(common.values(model), before) == 0


def test_one_rank_has_nothing_to_tune(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    if ringar.size() > 1:
        pytest.skip("for one rank")
    model = tuned_and_untuned(compiled(), clock, monkeypatch)
    assert tuning.of(model) is None
