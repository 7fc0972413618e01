"""The benchmarks that train: what they would try, and one small real run."""

from __future__ import annotations

import pytest

from benchmarks import targets
from benchmarks.harness import processes
from benchmarks.harness.targets import Target
from benchmarks.training import steps, threads

pytestmark = pytest.mark.job


def test_settings_of_threads() -> None:
    assert (1, 1, "core") in threads.settings(2, 2)
    assert {binding for *_, binding in threads.settings(4, 2)} == {"none"}
    assert max(intra for intra, *_ in threads.settings(1, 8)) == 8


def test_turns_are_compared_with_their_neighbours() -> None:
    reports = [
        {"plain": [[1.0, 3.0], [2.0, 2.0]], "ringar": [[3.0, 3.0], [5.0, 5.0]], "wrong": 0},
        {"plain": [[2.0, 1.0], [1.0, 2.0]], "ringar": [[3.0, 2.0], [5.0, 3.0]], "wrong": 1},
    ]
    row = steps.figures(reports)
    # Of two turns: the longer mean of the ranks, and the mean of the longer steps.
    assert (row["seconds"], row["plain"], row["bound"]) == (4.0, 2.0, 2.25)
    assert (row["min"], row["max"], row["wrong"]) == (3.0, 5.0, 1)
    assert (row["of_plain_min"], row["of_plain_max"]) == (2 / 5, 2 / 3)
    assert (row["of_bound_min"], row["of_bound_max"]) == (2 / 5, 2.5 / 3)
    text = steps.table_text([{"model": "mlp", "way": "fit", "processes": 2, **row}])
    assert "53.3% (40.0% to 66.7%)" in text


def test_a_job_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **_: object) -> str:
        raise processes.JobFailedError("exit code 1: last words")

    monkeypatch.setattr(processes, "run_command", fail)
    rows, reasons = steps.collect([("mlp", "fit", 2)], turns=1)
    assert rows == []
    assert reasons == {"mlp, fit, 2 ranks": "exit code 1: last words"}


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


@pytest.mark.parametrize("way", ["fit", pytest.param("loop", marks=pytest.mark.slow)])
def test_turns_of_a_job(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(steps.COUNTS, "mlp", 5)
    (row,), reasons = steps.collect([("mlp", way, 2)], turns=2)
    assert not reasons
    assert row["wrong"] == 0
    assert 0 < row["plain"] <= row["bound"]
    assert 0 < row["of_plain_min"] <= row["of_plain"] <= row["of_plain_max"]
