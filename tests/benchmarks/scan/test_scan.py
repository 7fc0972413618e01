"""What benchmarks.scan plans, counts and makes of reports, its pictures, and small real runs."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.scan import __main__ as scan
from benchmarks.scan import cells as scan_cells
from benchmarks.scan import counts as scan_counts
from benchmarks.scan import plot as scan_plot
from benchmarks.scan import report as scan_report
from benchmarks.scan import worker as scan_worker
from benchmarks.scan.cells import CENTER, ONE, RANKS, TWO, Cell, Times
from benchmarks.scan.counts import Counts
from tests.plugin import run_job

# --- the plan


def test_cells_are_the_papers() -> None:
    grid = scan_cells.grid()
    assert len(grid) == len(set(grid)) == 15
    assert {Cell(10, 16), Cell(30_000, 16), Cell(1000, 2), Cell(1000, 256), CENTER} < {*grid}
    assert all(cell.units == 20 for cell in grid)
    assert {cell.units for cell in scan_cells.small_cells()} == {1, 2, 4, 8}
    assert str(scan_cells.small_cells()[0]) == "T = 1000, B = 16, H = 1"
    assert Cell(30_000, 16).jacobian_bytes == 768_000_000


def test_jobs() -> None:
    jobs = scan.plan()
    assert [job.place for job in jobs] == [ONE, TWO, RANKS]
    assert [len(job.cells) for job in jobs] == [31, 15, 15]
    assert [bool(job.costs) for job in jobs] == [True, False, False]
    assert all(cell.batch % 2 == 0 for cell in jobs[2].cells), "two ranks share it"
    assert sum(len(job.cells) for job in scan.plan(quick=True)) < 6
    jobs = scan.plan(layer="LSTM")
    assert [len(job.cells) for job in jobs] == [18, 15, 15]
    assert not any(job.costs for job in jobs), "it has no scan"
    assert sum(len(job.cells) for job in scan.plan(quick=True, layer="LSTM")) < 8
    assert list(scan_worker.ways(2, "LSTM")) == ["keras", "keras_jit", "auto", "auto_jit"]


# --- operations


class BruteForce:
    """The walk of scan.cc, node by node, on numbers; it counts what it does."""

    def __init__(self, matrices: np.ndarray, vector: np.ndarray, levels: int) -> None:
        self.matrices, self.levels, self.positions = matrices, levels, len(matrices) + 1
        self.results, self.matrices_of = {0: vector}, {}  # type: ignore[var-annotated]
        self.counts = Counts()
        block = 1 << levels
        last = (math.ceil(self.positions / block) - 1) * block
        for lo in range(0, last, block):
            self.keep(lo, levels)
        lo = last
        for level in reversed(range(levels)):
            if lo + (1 << level) < self.positions:
                self.keep(lo, level)
                lo += 1 << level
        for lo in range(block, last, block):
            self.carry(lo, levels)
        for lo in range(0, last + 1, block):
            self.down(lo, levels)
        self.carry(self.positions - 1, 0)

    def leaf(self, lo: int) -> np.ndarray:
        self.counts += Counts(jacobians=1)
        return self.matrices[lo - 1]

    def apply(self, lo: int, matrix: np.ndarray, to: int) -> None:
        self.counts += Counts(applies=1)
        assert to not in self.results, "nothing is done twice"
        self.results[to] = matrix @ self.results[lo]

    def keep(self, lo: int, level: int) -> None:
        if level > 0:
            self.matrices_of[lo, level] = self.up(lo, level)

    def up(self, lo: int, level: int) -> Any:
        if level == 0:
            return self.leaf(lo)
        mid = lo + (1 << (level - 1))
        left = self.up(lo, level - 1) if lo > 0 or level > 1 else None
        if lo > 0 or level > 1:
            self.matrices_of[lo, level - 1] = left
        right = self.up(mid, level - 1)
        if lo == 0:
            return self.apply(mid - 1, right, lo + (1 << level) - 1)
        self.counts += Counts(products=1)
        return right @ left

    def carry(self, lo: int, level: int) -> None:
        matrix = self.matrices_of[lo, level] if level else self.leaf(lo)
        self.apply(lo - 1, matrix, lo + (1 << level) - 1)

    def down(self, lo: int, level: int) -> None:
        for below in reversed(range(level)):
            mid = lo + (1 << below)
            if mid < self.positions:
                if lo > 0:
                    self.carry(lo, below)
                self.down(lo, below)
                lo = mid


@pytest.mark.parametrize("levels", [0, 1, 2, 3, 5, scan_counts.WHOLE])
def test_counts_are_those_of_the_walk(levels: int) -> None:
    rng = np.random.default_rng(0)
    for length in [*range(1, 40), 63, 64, 65, 100, 127, 128, 300]:
        matrices = rng.normal(size=(length, 2, 2))
        depth = min(levels, scan_counts.tree_levels(length))
        walk = BruteForce(matrices, np.ones(2), depth)
        assert scan_counts.count(length, levels) == walk.counts, length
        vector = np.ones(2)
        for k, matrix in enumerate(matrices):
            vector = matrix @ vector
            np.testing.assert_allclose(
                walk.results[k + 1], vector, rtol=1e-9, atol=1e-12 * abs(vector).max()
            )


def test_counts_of_the_chain_and_of_a_long_scan() -> None:
    assert scan_counts.count(1000, 0) == Counts(0, 1000, 1000)
    totals = scan_counts.count(1 << 15)
    assert totals.applies == 1 << 15, "every state's gradient is computed once"
    assert (totals.products, totals.jacobians) == pytest.approx(
        (1 << 15, 1.5 * (1 << 15)), rel=0.01
    )
    assert Counts(1, 1, 1).operations(10) == 2 * 1000 + 200 + 100
    assert scan_counts.operations(1000, 16, 20, levels=0) == 16 * 1000 * (800 + 400 + 800)


def test_rates_are_fitted_to_relative_errors() -> None:
    amounts = [1e3, 1e6, 1e9]
    rates = scan_counts.fit(amounts, [5e-5 + 2e-11 * amount for amount in amounts])
    assert rates.call == pytest.approx(5e-5)
    assert rates.operation == pytest.approx(2e-11)
    for seconds in ([1e-8, 1e-5, 1.1e-2], [1e-3, 1e-3, 1e-3]):
        rates = scan_counts.fit(amounts, seconds)
        assert min(rates.call, rates.operation) >= 0
    assert rates.seconds(0) == pytest.approx(1e-3, rel=0.01)


# --- times and tables


def times(slow: float = 1.0, keras: float = 20e-3, scan_step: float = 6e-3) -> Times:
    """Two rounds, the second twice as slow."""
    steps = {"keras": keras, "keras_jit": 10e-3, "auto": 1.1e-3, "auto_jit": 1e-3,
             "serial": 1.2e-3, "scan": scan_step, "hybrid": 5e-3}  # fmt: skip
    rounds = {way: [(0.4 * s * t * slow, 0.6 * s * t * slow, s * t * slow) for t in (1.0, 2.0)]
              for way, s in steps.items()}  # fmt: skip
    return Times(rounds, [1e-3, 2e-3, 2e-3])


def test_times_of_rounds() -> None:
    seconds = Times({"scan": [(1.0, 2.0, 3.0), (2.0, 3.0, 5.0), (2.0, -1.0, 1.0)]})
    assert seconds.of("scan", "backward") == [2.0, 3.0, scan_cells.SHORTEST], "never below 0"
    assert seconds.of("scan", "step") == [3.0, 5.0, 1.0]
    assert seconds.seconds("scan", "forward") == 2.0
    assert times().faster("auto_jit", "keras", "step") == pytest.approx(20)
    assert times().best(scan_worker.OWN, "backward") == "auto_jit"


def test_times_are_of_the_slowest_rank() -> None:
    reports = [{"rounds": {"scan": [[1.0, 4.0, 5.0]]}, "jacobians": [3.0]},
               {"rounds": {"scan": [[2.0, 2.0, 4.0]]}, "jacobians": [2.0]}]  # fmt: skip
    assert scan_cells.slowest(reports) == Times({"scan": [(2.0, 4.0, 5.0)]}, [3.0])


def test_rows_can_be_read_again() -> None:
    tables = {ONE: {CENTER: times()}, RANKS: {Cell(10, 16): times(2.0)}}
    rows = json.loads(json.dumps(scan_cells.to_rows(tables)))
    assert scan_cells.from_rows(rows) == tables
    assert rows[0]["ways"]["scan"]["step"] == pytest.approx(
        {"seconds": 9e-3, "min": 6e-3, "max": 12e-3}
    )


def measured() -> scan_cells.Outcome:
    """All cells, times proportional to operations; the automatic choice loses at T = 10."""
    tables: scan_cells.Outcome = {}
    for place in (ONE, TWO):
        for cell in scan_cells.grid() + scan_cells.small_cells():
            slow = cell.steps * cell.batch / 16e3
            tables.setdefault(place, {})[cell] = times(
                slow, scan_step=60e-3 if cell.units == 8 else 6e-3
            )
    for cell in (Cell(10, 16),):
        tables[ONE][cell].rounds["keras_jit"] = [(1e-6, 4e-6, 5e-6)] * 2
    return tables


def test_targets() -> None:
    targets = scan_report.targets(measured())
    figures = [target.measured for target in targets]
    assert figures[:4] == [pytest.approx([x]) for x in (20, 10, 20, 10)]
    assert "T = 10, B = 16" in targets[4].title
    assert figures[4] == pytest.approx([20, 5e-6 / 1.5e-5], rel=0.5)
    assert figures[6][0] < 1.1
    assert figures[7] == pytest.approx([1 / 3])
    assert "least, at T = 1000, B = 16, H = 8" in targets[7].title
    verdicts = [target.row()[-1] for target in targets]
    assert verdicts == ["yes"] * 4 + ["no", "yes", "yes", "no"]
    assert all("not measured" in target.row() for target in scan_report.targets({}))


def measured_lstm() -> scan_cells.Outcome:
    """What a run of an LSTM gives; Keras' graph is the faster one at H = 1024."""
    tables: scan_cells.Outcome = {}
    for cell in scan_cells.grid() + scan_cells.large_cells():
        cell_times = times(keras=1e-3 if cell.units == 1024 else 20e-3)
        rounds = {way: cell_times.rounds[way] for way in scan_worker.ways(1, "LSTM")}
        tables.setdefault(ONE, {})[cell] = Times(rounds)
    return tables


def test_targets_and_tables_of_an_lstm() -> None:
    targets = scan_report.lstm_targets(measured_lstm())
    assert [target.row()[-1] for target in targets] == ["yes", "no", "yes"]
    assert [len(target.measured) for target in targets] == [1, 1, 2]
    assert "least, at T = 20, B = 64, H = 1024" in targets[1].title
    assert all("not measured" in target.row() for target in scan_report.lstm_targets({}))
    text = scan_report.text(measured_lstm(), {})
    assert "## Many units" in text
    assert "scan" not in text
    assert scan_plot.winner(measured_lstm()[ONE][CENTER], "step") == ("auto_jit", "10x")


def test_tables() -> None:
    text = scan_report.text(measured(), {1: (1e-8, 1e-8), 256: (2e-4, 3e-6)})
    assert "| T = 1000, B = 16 " in text
    assert "| 1.5 [1, 2] " in text, "the median of the rounds, the least and the greatest"
    assert "workers needed with the times of this machine" in text
    assert "T = 1000, B = 16, H = 8" in text
    jacobians = scan_report.times_text({CENTER: times(), Cell(10, 16): Times(times().rounds)},
                                       "backward")  # fmt: skip
    assert "| 2 [1, 2] " in jacobians
    assert jacobians.rstrip(" |").endswith("-"), "what needs too much memory is not made"


def test_wrong_results_are_named() -> None:
    expected = [np.array(2.0), np.ones(4)]
    assert scan_worker.difference(expected, expected) == ""
    off = scan_worker.difference([np.array(2.0), np.array([1, 1, 1, 1.01])], expected)
    assert off == "gradient 1 is off by 0.005"
    assert "loss" in scan_worker.difference([np.array(math.nan), np.ones(4)], expected)

    def of_rank(norm: float, faults: dict[str, str]) -> Any:
        return {"cells": [{"rounds": {"keras": [[1.0, 1.0, 2.0]]}, "jacobians": [], "wrong": faults,
                           "norms": [norm, 1.0]}], "costs": {}}  # fmt: skip

    measurements = scan.Measured()
    scan.add(measurements, scan.Job(ONE, [CENTER]), [of_rank(2.0, {})])
    scan.add(
        measurements, scan.Job(RANKS, [CENTER]), [of_rank(2.0, {"scan": "loss"}), of_rank(2.1, {})]
    )
    assert measurements.faults == [
        "2 ranks, rank 0, T = 1000, B = 16, scan: loss",
        "2 ranks, rank 1, T = 1000, B = 16, Keras: loss or gradients are not those elsewhere",
    ]


@pytest.mark.slow
def test_pictures(tmp_path: Path) -> None:
    data = {
        "cells": scan_cells.to_rows(measured()),
        "costs": {"1": [1e-8, 1e-8], "256": [2e-4, 3e-6]},
    }
    scan_plot.draw(data, str(tmp_path / "scan.png"))
    scan_plot.draw_crossover(data, str(tmp_path / "crossover.png"))
    for picture in tmp_path.glob("*.png"):
        assert picture.stat().st_size > 20_000
    assert len(list(tmp_path.glob("*.png"))) == 2
    with pytest.raises(ValueError, match="expected measurements of cells"):
        scan_plot.draw({"cells": []}, str(tmp_path / "none.png"))


def test_the_winner_of_a_cell() -> None:
    assert scan_plot.winner(times(), "step") == ("auto_jit", "10x\nscan 1.7x")
    assert scan_plot.winner(times(), "forward") == ("auto_jit", "10x")
    equal = times()
    equal.rounds["keras_jit"] = [(0.9e-3, 0.9e-3, 1e-3)] * 2
    assert scan_plot.winner(equal, "step")[0] == "keras_jit"
    assert scan_plot.winner(equal, "step")[1].startswith("0.8x")


# --- real runs


@pytest.mark.slow
@pytest.mark.job
@pytest.mark.deadline(150)
def test_a_quick_run(tmp_path: Path) -> None:
    words = ["--quick", "--output", str(tmp_path / "scan")]
    command = [sys.executable, "-m", "benchmarks.scan", *words]
    job = run_job(None, command, deadline=140).check()
    assert "wrong" not in job.stderr
    data = json.loads((tmp_path / "scan.json").read_text())
    assert {row["place"] for row in data["cells"]} == {"1 thread", "2 ranks"}
    for row in data["cells"]:
        assert list(row["ways"]) == list(scan_worker.ways(2 if row["place"] == "2 ranks" else 1))
        assert all(way["forward"]["seconds"] > 0 for way in row["ways"].values())
        assert len(row["jacobians"]) == 1
    assert sorted(data["costs"]) == ["1", "20"]
    assert data["missing"] == {}


@pytest.mark.slow
@pytest.mark.job
@pytest.mark.deadline(150)
def test_a_quick_run_of_an_lstm(tmp_path: Path) -> None:
    options = ["--quick", "--layer", "LSTM", "--output", str(tmp_path / "lstm")]
    command = [sys.executable, "-m", "benchmarks.scan", *options]
    run_job(None, command, deadline=140).check()
    data = json.loads((tmp_path / "lstm.json").read_text())
    assert (data["layer"], data["missing"], data["wrong"]) == ("LSTM", {}, [])
    for row in data["cells"]:
        assert list(row["ways"]) == list(scan_worker.ways(1, "LSTM"))


@pytest.mark.slow
@pytest.mark.job
def test_a_wrong_result_makes_it_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scan, "plan", lambda quick, layer: [scan.Job(ONE, [Cell(12, 2, 3)])])
    assert scan.main(["--quick", "--fault", "hybrid"]) == 1
    assert (
        "wrong: 1 thread, T = 12, B = 2, H = 3, hybrid: loss is off by 0.01"
        in capsys.readouterr().err
    )
