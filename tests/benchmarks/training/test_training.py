"""The benchmarks that train: what they would try, and one small real run."""

from __future__ import annotations

import pytest

from benchmarks import __main__ as everything
from benchmarks import targets as bounds
from benchmarks.harness import processes, report
from benchmarks.harness import targets as targets
from benchmarks.harness.series import Series
from benchmarks.training import __main__ as overhead
from benchmarks.training import jobs as training
from benchmarks.training import scaling, threads

pytestmark = pytest.mark.job


def test_settings_of_threads() -> None:
    assert (1, 1, "core") in threads.settings(2, 2)
    assert {binding for *_, binding in threads.settings(4, 2)} == {"none"}
    assert max(intra for intra, *_ in threads.settings(1, 8)) == 8


def test_rows_of_overhead_and_scaling() -> None:
    plain, ours = Series([[2e-3, 2e-3]]), Series([[2.5e-3]])
    rows = overhead.rows({("mlp", 2, False): plain, ("mlp", 2, True): ours})
    assert [row["of_plain"] for row in rows] == [1.0, pytest.approx(0.8)]
    one = Series([[1e-3]])
    table = scaling.rows({("mlp", 1, False): one, ("mlp", 2, True): Series([[1.25e-3]])})
    assert table[1]["ideal"] == pytest.approx(2 * 8 / 1e-3)
    assert table[1]["efficiency"] == pytest.approx(0.8)


def test_a_case_that_fails_is_named_and_the_others_have_rows() -> None:
    found = {("mlp", 2, False): Series(failure="no end after 1 s"),
             ("mlp", 2, True): Series([[1e-3]])}  # fmt: skip
    (row,) = overhead.rows(found)
    assert row["of_plain"] != row["of_plain"]
    assert overhead.failures(found) == {"mlp, 2 x plain Keras": "no end after 1 s"}
    assert "no end after" in report.missing_lines(overhead.failures(found))


def test_a_job_that_fails_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def fail(command: list[str], **_: object) -> str:
        commands.append(command)
        raise processes.JobFailedError("exit code 1: last words")

    monkeypatch.setattr(processes, "run_command", fail)
    found = overhead.collect([("mlp", 1, False), ("mlp", 1, True)], rounds=3, epochs=1)
    assert len(commands) == 2
    assert {one.failure for one in found.values()} == {"exit code 1: last words"}
    assert overhead.rows(found) == []


def test_musts_without_figures_say_so() -> None:
    rows = [target.row() for target in bounds.targets(bounds.Figures(), everything.SIZES)]
    assert len(rows) == 14
    assert {row[3] for row in rows} == {"not measured"}


def test_the_worst_figure_decides_a_must() -> None:
    assert targets.Target("x", 2.2, "x", [2.5, 2.1]).row() == ["x", ">= 2.2x", "2.5, 2.1x", "no"]
    assert targets.Target("x", 2, " us", [1.0], at_most=True).row()[1:] == [
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
    assert result.wrong == 0
