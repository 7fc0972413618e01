"""The search as plain data: what is tried, in which order, what stays, and what is written."""

from __future__ import annotations

import csv
import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ringar.errors import UnsupportedError
from ringar.keras import buckets
from ringar.keras.buckets import Spec
from ringar.keras.tuned import DEFAULTS, Settings
from ringar.keras.tuning import files, options
from ringar.keras.tuning.bayes import BayesianSampler
from ringar.keras.tuning.search import TURNS, Choice, Sample, is_faster, search
from ringar.keras.tuning.space import Job, Space
from ringar.keras.tuning.tuner import Director

pytestmark = pytest.mark.ranks(1)

MIB = 1 << 20
#: 12 layers of 4 MiB and their biases.
SPECS = (Spec((1024, 1024), "float32"), Spec((1024,), "float32")) * 12
Cost = Callable[[Settings], float]


class Listed:
    """Propose what a list has, and keep what is told."""

    def __init__(self, *proposals: Settings) -> None:
        self.proposals, self.seconds = list(proposals), list[float]()

    def ask(self) -> Settings:
        return self.proposals.pop(0)

    def tell(self, seconds: float) -> None:
        self.seconds.append(seconds)


def run(space: Space, sampler: Any, cost: Cost, *lengths: int) -> tuple[list[Sample], Choice]:
    samples: list[Sample] = []
    trials = search(space, sampler, *lengths)
    try:
        samples.append(next(trials))
        while True:
            samples.append(trials.send(cost(samples[-1].settings)))
    except StopIteration as end:
        return samples, end.value


def test_settings_that_make_the_same_step_are_one() -> None:
    space = Space(Job(2, 1, SPECS))
    assert set(space.dimensions) == {"bucket_bytes", "first_bucket_bytes"}
    steps: dict[Any, set[Settings]] = {}
    for limit in space.dimensions["bucket_bytes"]:
        for first in space.dimensions["first_bucket_bytes"]:
            settings: Any = Settings(limit, first)  # type: ignore[arg-type]
            plan = tuple(bucket.indices for bucket in buckets.plan(SPECS, *settings.limits(None)))
            same = space.settings({"bucket_bytes": limit, "first_bucket_bytes": first})
            steps.setdefault(plan, set()).add(same)
    assert all(len(names) == 1 for names in steps.values())
    assert space.count == len(steps) > 5
    assert Space(Job(2, 1, SPECS[:2])).count == 2  # whether the bias has a bucket of its own
    assert Space(Job(2, 1, SPECS[1:2])).count == 1


def test_the_dimensions_are_those_of_the_job() -> None:
    names = "bucket_bytes", "first_bucket_bytes", "algorithm", "compression"
    two = Space(Job(2, 2, SPECS))
    assert tuple(two.dimensions) == names[:3]
    assert "halving_doubling" not in two.dimensions["algorithm"]
    four = Space(Job(4, 2, SPECS), compression=True)
    assert tuple(four.dimensions) == names
    assert "halving_doubling" in four.dimensions["algorithm"]
    assert four.count == Space(Job(4, 1, SPECS)).count * 4 * 2
    assert all(values[0] == getattr(DEFAULTS, name) for name, values in four.dimensions.items())
    # Without leave, and inside a host, nothing is compressed.
    assert not two.holds(Settings(compression="bf16"))
    assert not Space(Job(4, 1, SPECS), compression=True).holds(Settings(compression="bf16"))
    assert four.holds(Settings(8 * MIB, None, "ring", "bf16"))


def test_what_the_user_has_chosen_is_not_searched() -> None:
    space = Space(Job(2, 2, SPECS, {"bucket_bytes": 12 * MIB, "algorithm": "ring"}))
    (name,) = space.dimensions
    assert name == "first_bucket_bytes"
    sizes = [MIB if first is None else int(first) for first in space.dimensions[name]]
    plans = {str(buckets.plan(SPECS, 12 * MIB, size)) for size in sizes}
    assert space.count == len(plans) > 1


def test_the_defaults_come_first_and_again_in_turns_with_the_best() -> None:
    candidate, best = Settings(32 * MIB), Settings(16 * MIB)
    sampler = Listed(DEFAULTS, candidate, DEFAULTS, best)
    cost = {DEFAULTS: 1.0, candidate: 0.9, best: 0.8}.__getitem__
    samples, choice = run(Space(Job(2, 1, SPECS)), sampler, cost, 2, 3)
    phases = [sample.phase for sample in samples]
    assert phases == ["warm-up"] * 2 + ["search"] * 3 + ["compare"] * 2 * TURNS
    trials = [sample.settings for sample in samples]
    assert trials[:5] == [DEFAULTS, DEFAULTS, DEFAULTS, candidate, best]
    assert sampler.seconds == [1.0, 0.9, 1.0, 0.8]  # what is known is not measured again
    turns = trials[5:]
    assert all(set(turns[i : i + 2]) == {best, DEFAULTS} for i in range(0, 2 * TURNS, 2))
    assert turns[0] is DEFAULTS
    assert turns[2] is best
    assert choice.seconds == pytest.approx(0.8)
    assert (choice.settings, choice.default_seconds, choice.trials) == (best, 1.0, 3)


def test_the_defaults_stay_unless_another_is_faster_beyond_noise() -> None:
    """A sample that was faster by chance misleads the search, and not the comparison."""
    rng = random.Random(1)
    lucky = Settings(16 * MIB)
    first = iter([0.5])

    def cost(settings: Settings) -> float:
        noise = rng.uniform(0.9, 1.1)
        return next(first, noise) if settings == lucky else noise

    _, choice = run(Space(Job(2, 1, SPECS)), Listed(DEFAULTS, lucky), cost, 0, 2)
    assert choice.settings == DEFAULTS
    assert choice.seconds == choice.default_seconds


def test_no_comparison_where_the_defaults_are_the_best() -> None:
    samples, choice = run(
        Space(Job(2, 1, SPECS)), Listed(DEFAULTS, Settings(MIB)),
        lambda s: 1.0 + (s != DEFAULTS), 0, 2,
    )  # fmt: skip
    assert len(samples) == 2
    assert choice == Choice(DEFAULTS, 1.0, 1.0, 2)


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.3])
def test_beyond_noise_is_a_t_test_of_pairs(shift: float) -> None:
    rng = np.random.default_rng(0)
    verdicts = set()
    for _ in range(200):
        samples, rivals = rng.normal(1.0, 0.1, TURNS), rng.normal(1.0 + shift, 0.1, TURNS)
        p = stats.ttest_rel(samples, rivals, alternative="less").pvalue
        if abs(p - 0.05) > 1e-3:
            assert is_faster(samples.tolist(), rivals.tolist()) == (p < 0.05)
            verdicts.add(bool(p < 0.05))
    assert verdicts == {False, True}
    assert not is_faster([1.0] * TURNS, [1.0] * TURNS)
    assert is_faster([0.9] * TURNS, [1.0] * TURNS)


def valley(settings: Settings) -> float:
    """Least at 32 MiB, first 2 MiB, by a ring."""
    limit, first = settings.bucket_bytes or 8 * MIB, settings.first_bucket_bytes or MIB
    factor = {"ring": 0.9}.get(settings.algorithm or "", 1.0)
    return factor * (
        1 + 0.1 * abs(math.log2(limit / MIB) - 5) + 0.05 * abs(math.log2(first / MIB) - 1)
    )


def test_proposals_lead_to_the_least_of_all_steps() -> None:
    space = Space(Job(2, 2, SPECS))
    combinations = [
        space.settings({"bucket_bytes": a, "first_bucket_bytes": b, "algorithm": c})
        for a in space.dimensions["bucket_bytes"]
        for b in space.dimensions["first_bucket_bytes"]
        for c in space.dimensions["algorithm"]
    ]
    samples, choice = run(space, BayesianSampler(space), valley, 0, 20)
    assert samples[0].settings == DEFAULTS
    costs = sorted(map(valley, set(combinations)))
    assert choice.seconds <= costs[len(costs) // 10]  # of the best tenth
    again, _ = run(space, BayesianSampler(space), valley, 0, 20)
    assert again == samples


def test_a_small_space_is_tried_in_full() -> None:
    space = Space(Job(2, 1, SPECS[:2]))
    _, choice = run(space, BayesianSampler(space), lambda s: 2.0 - (s != DEFAULTS), 0, 20)
    assert choice.trials == space.count == 2
    assert choice.settings != DEFAULTS


def test_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UnsupportedError, match=r"pip install optuna"):
        BayesianSampler(Space(Job(2, 1, SPECS)))


def test_optuna_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    import optuna

    before = optuna.logging.get_verbosity()
    space = Space(Job(2, 1, SPECS))
    run(space, BayesianSampler(space), valley, 0, 8)
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == before


def test_the_log_has_a_row_for_each_sample(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    for model in ("one", "two"):
        log = files.Log(path, model)
        log.write(Sample("search", DEFAULTS), 0.25)
        log.write(Sample("compare", Settings(MIB, None, "ring", "bf16")), 0.125)
        log.close()
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == ["one", "one", "two", "two"]
    assert rows[1] == {
        "model": "one", "sample": "1", "phase": "compare", "bucket_bytes": str(MIB),
        "first_bucket_bytes": "default", "algorithm": "ring", "compression": "bf16",
        "seconds": "0.125",
    }  # fmt: skip


def test_a_file_of_settings_holds_them_by_kind(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "settings.json"
    first, second = files.Kind.of(Job(2, 1, SPECS)), files.Kind.of(Job(2, 1, SPECS[:4]))
    assert files.load(path, first) is None
    table = {first: Settings(MIB, 2 * MIB, "ring"), second: Settings(compression="bf16")}
    for kind, settings in [*table.items(), (first, Settings(4 * MIB)), (first, table[first])]:
        files.store(path, kind, Choice(settings, 1.0, 2.0, 3))
    assert {kind: files.load(path, kind) for kind in table} == table
    assert len(json.loads(path.read_text())["settings"]) == 2
    differing = [Job(3, 1, SPECS), Job(2, 2, SPECS), Job(2, 1, SPECS, {"bucket_bytes": MIB})]
    assert [files.load(path, files.Kind.of(job)) for job in differing] == [None] * 3
    # A search with compression is another one than a search without it.
    assert files.load(path, files.Kind.of(Job(2, 1, SPECS), compression=True)) is None


def test_others_may_read_a_file_of_settings_as_they_may_read_any_file(tmp_path: Path) -> None:
    path, any_file = tmp_path / "settings.json", tmp_path / "any"
    any_file.touch()
    kind, choice = files.Kind.of(Job(2, 1, SPECS)), Choice(DEFAULTS, 1.0, 1.0, 3)
    files.store(path, kind, choice)
    assert path.stat().st_mode == any_file.stat().st_mode
    path.chmod(0o660)
    files.store(path, kind, choice)
    assert path.stat().st_mode & 0o777 == 0o660


@pytest.mark.parametrize(
    "text", ["", "[]", '{"settings": 3}', '{"settings": [3]}', "KIND", "WRONG", "\xff"]
)
def test_a_file_that_holds_no_settings(tmp_path: Path, text: str) -> None:
    path, kind = tmp_path / "settings.json", files.Kind.of(Job(2, 1, SPECS))
    entry: dict[str, Any] = {"kind": vars(kind)}
    if text == "WRONG":
        entry["settings"] = {**vars(DEFAULTS), "bucket_bytes": -1}
    texts = {"KIND": json.dumps({"settings": [entry]}), "WRONG": json.dumps({"settings": [entry]})}
    path.write_bytes(texts.get(text, text).encode("latin-1"))
    with pytest.raises(ValueError, match=r"settings\.json: expected"):
        files.load(path, kind)


def test_a_file_that_cannot_be_written_any_longer_ends_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "folder" / "settings.json"
    choices = options.Options(warmup=0, samples=3, settings=path, log=tmp_path / "log.csv")
    director = Director(Job(2, 1, SPECS), choices)
    path.parent.rmdir()
    path.parent.touch()
    decision = director.first
    while not decision.is_last:
        decision = director.decide(valley(decision.settings))
    assert decision.settings != DEFAULTS
    assert "cannot keep the settings" in caplog.text
    assert (tmp_path / "log.csv").read_text().count("chosen") == 1
    with pytest.raises(ValueError, match="expected a log that can be written"):
        Director(Job(2, 1, SPECS), options.Options(log=Path("/dev/full")))


def test_options() -> None:
    assert not options.is_wanted({})
    assert not options.is_wanted({"RINGAR_AUTOTUNE": "0"})
    assert options.is_wanted({"RINGAR_AUTOTUNE": "1"})
    assert options.read({}) == options.Options()
    values = {
        "RINGAR_AUTOTUNE_COMPRESSION": "1",
        "RINGAR_AUTOTUNE_WARMUP_SAMPLES": "0",
        "RINGAR_AUTOTUNE_STEPS_PER_SAMPLE": "7",
        "RINGAR_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "9",
        "RINGAR_AUTOTUNE_LOG": "a.csv",
        "RINGAR_AUTOTUNE_SETTINGS": "b.json",
    }
    assert options.read(values) == options.Options(True, 0, 7, 9, Path("a.csv"), Path("b.json"))
    for name, value in (("", "yes"), ("_COMPRESSION", "2")):
        with pytest.raises(ValueError, match=f"RINGAR_AUTOTUNE{name} must be 0 or 1"):
            (options.read if name else options.is_wanted)({f"RINGAR_AUTOTUNE{name}": value})
    with pytest.raises(ValueError, match="must be a whole number, 1 or more. Received: '0'"):
        options.read({"RINGAR_AUTOTUNE_STEPS_PER_SAMPLE": "0"})
