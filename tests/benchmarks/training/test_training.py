"""The benchmarks that train: what they would try, and one small real run."""

from __future__ import annotations

import pytest

from benchmarks import targets
from benchmarks.harness import processes, report
from benchmarks.harness.series import Series
from benchmarks.harness.targets import Target
from benchmarks.training import __main__ as overhead
from benchmarks.training import jobs as training
from benchmarks.training import threads

pytestmark = pytest.mark.job


def test_settings_of_threads() -> None:
    assert (1, 1, "core") in threads.settings(2, 2)
    assert {binding for *_, binding in threads.settings(4, 2)} == {"none"}
    assert max(intra for intra, *_ in threads.settings(1, 8)) == 8


def test_rows_of_overhead() -> None:
    plain, distributed = Series([[2e-3, 2e-3]]), Series([[2.5e-3]])
    rows = overhead.rows({("mlp", 2, False): plain, ("mlp", 2, True): distributed})
    assert [row["of_plain"] for row in rows] == [1.0, pytest.approx(0.8)]


def test_a_case_that_fails_is_named_and_the_others_have_rows() -> None:
    series = {("mlp", 2, False): Series(failure="no end after 1 s"),
             ("mlp", 2, True): Series([[1e-3]])}  # fmt: skip
    (row,) = overhead.rows(series)
    assert row["of_plain"] != row["of_plain"]
    assert training.failures(series) == {"mlp, 2 x plain Keras": "no end after 1 s"}
    assert "no end after" in report.missing_lines(training.failures(series))


def test_a_job_that_fails_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def fail(command: list[str], **_: object) -> str:
        commands.append(command)
        raise processes.JobFailedError("exit code 1: last words")

    monkeypatch.setattr(processes, "run_command", fail)
    series = training.collect([("mlp", 1, False), ("mlp", 1, True)], rounds=3, epochs=1)
    assert len(commands) == 2
    assert {times.failure for times in series.values()} == {"exit code 1: last words"}
    assert overhead.rows(series) == []


def test_targets_without_figures_say_so() -> None:
    rows = [target.row() for target in targets.targets(targets.Figures({}))]
    assert len(rows) == 16
    assert {row[3] for row in rows} == {"not measured"}


def test_the_worst_figure_decides_a_target() -> None:
    assert Target("x", 2.2, "x", [2.5, 2.1]).row() == ["x", ">= 2.2x", "2.5, 2.1x", "no"]
    assert Target("x", 2, "x", [float("nan"), 1.5]).row()[2:] == ["?, 1.5x", "no"]
    assert Target("x", 2, "x", [float("nan"), 2.5]).row()[2:] == ["?, 2.5x", "not measured"]
    assert Target("x", 2, " us", [1.0], at_most=True).row()[1:] == [
        "<= 2 us",
        "1 us",
        "yes",
    ]


def test_a_job_trains_and_ranks_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(training.STEPS, "mlp", 5)
    result = Series()
    training.train("mlp", 2, result, epochs=1)
    assert not result.failure
    assert len(result.rounds) == 1
    assert result.errors == 0


@pytest.mark.slow
def test_plain_processes_report_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(training.STEPS, "mlp", 5)
    result = Series()
    training.train("mlp", 2, result, with_ringar=False, epochs=2)
    assert not result.failure
    # The steps of a rank fill an epoch, and the bound has the longest of each.
    assert result.bound >= result.seconds * 0.999
    assert len(result.bounds[0]) == 2
