"""The benchmarks that train: what they would try, and one small real run."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import targets
from benchmarks.harness import processes
from benchmarks.harness.targets import Target
from benchmarks.quick import starts
from benchmarks.training import crowd, steps, threads

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
    assert len(rows) == 28
    assert {row[3] for row in rows} == {"not measured"}


def test_targets_find_their_figures() -> None:
    def calls(name: str, **times: float) -> list[dict[str, Any]]:
        about = {"collective": name, "bytes": 64}
        return [{**about, "way": way, "seconds": seconds} for way, seconds in times.items()]

    runs = {
        "calls": {
            "rows": [*calls("barrier", mpi4py=2.0, NumPy=5.0), *calls("allreduce", mpi4py=1.0)]
        },
        "epochs": {
            "rows": [
                {"title": "arrays, 2 ranks", "seconds": 0.01, "max": 0.02},
                {"title": "Dataset, 2 ranks", "seconds": 0.02, "max": 0.07},
            ]
        },
        "starts": {"rows": [{"title": starts.title_here(2), "until_end": 0.5}]},
        "crowd": {"rows": [{"cores": 2, "of_fewer": 0.9}, {"cores": 1, "of_fewer": 0.8}]},
    }
    rows = [target.row() for target in targets.targets(targets.Figures(runs))]
    by_title = {row[0]: row[2:] for row in rows if row[3] != "not measured"}
    assert by_title == {
        "barrier, of mpi4py's": ["2.5x", "yes"],
        "begin of an epoch, two ranks, median": ["10, 20 ms", "no"],
        "begin of an epoch, two ranks, longest": ["20, 70 ms", "no"],
        "job of two ranks that add NumPy arrays, in all": ["0.5 s", "yes"],
        "4 ranks on 2 cores, examples/s, of 2 ranks": ["90%", "yes"],
        "2 ranks on one core, examples/s, of one rank": ["80%", "no"],
    }


def test_crowds_are_compared_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[tuple[int, int]] = []

    def speeds(cores: int, ranks: int) -> dict[str, float]:
        jobs.append((cores, ranks))
        # A machine that is twice as fast in the second round.
        speed = 100.0 * cores * (2 if len(jobs) > 4 else 1)
        return {"plain": speed, "ringar": speed * (0.5 if ranks > cores else 1)}

    monkeypatch.setattr(crowd, "speeds", speeds)
    rows = crowd.measure(2)
    assert jobs == [(2, 2), (2, 4), (1, 1), (1, 2), (2, 4), (2, 2), (1, 2), (1, 1)]
    assert [(row["ranks"], row["of_fewer_min"], row["of_fewer_max"]) for row in rows] == [
        (4, 0.5, 0.5),
        (2, 0.5, 0.5),
    ]
    assert "50% (50% to 50%)" in crowd.table_text(rows)
    assert all(row["of_fewer_plain"] == 1 for row in rows)


@pytest.mark.slow
def test_ranks_of_a_crowd_share_their_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(steps.COUNTS, "digits", 4)
    monkeypatch.setattr(crowd, "TURNS", 1)
    assert min(crowd.speeds(1, 2).values()) > 0


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
