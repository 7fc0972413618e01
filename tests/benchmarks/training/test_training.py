"""The benchmarks that train: what they would try, and one small real run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks import targets
from benchmarks.harness import processes, report
from benchmarks.harness.series import Series
from benchmarks.harness.targets import Target
from benchmarks.training import jobs as training
from benchmarks.training import plot, scaling, steps, threads
from benchmarks.training.models import GRADIENT_BYTES
from ringar import cost_model

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


def test_rows_of_scaling() -> None:
    single = Series([[1e-3]])
    table = scaling.rows({("mlp", 1, False): single, ("mlp", 2, True): Series([[1.25e-3]])})
    assert table[1]["ideal"] == pytest.approx(2 * 8 / 1e-3)
    assert table[1]["efficiency"] == pytest.approx(0.8)


def test_a_case_that_fails_is_named_and_the_others_have_rows() -> None:
    series = {("mlp", 2, False): Series(failure="no end after 1 s"),
             ("mlp", 2, True): Series([[1e-3]])}  # fmt: skip
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


def test_a_job_trains_and_ranks_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(training.STEPS, "mlp", 5)
    result = Series()
    training.train("mlp", 2, result, epochs=1)
    assert not result.failure
    assert len(result.rounds) == 1
    assert result.errors == 0


@pytest.mark.parametrize("way", ["fit", pytest.param("loop", marks=pytest.mark.slow)])
def test_turns_of_a_job(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(steps.COUNTS, "mlp", 5)
    (row,), reasons = steps.collect([("mlp", way, 2)], turns=2)
    assert not reasons
    assert row["wrong"] == 0
    assert 0 < row["plain"] <= row["bound"]
    assert 0 < row["of_plain_min"] <= row["of_plain"] <= row["of_plain_max"]


def test_a_prediction_beside_scaling() -> None:
    parameters = scaling.host_parameters(short=2e-6, long=8e-3)
    # The model gives back the times that its parameters were made from.
    host = cost_model.Network(parameters, 1, 2)
    assert host.local_allreduce(scaling.LONG) == pytest.approx(8e-3)
    assert host.local_allreduce(0) == pytest.approx(2e-6)
    table = scaling.rows(measured(), parameters, 2)
    predicted = {row["ranks"]: row["predicted"] for row in table}
    exchange = host.local_allreduce(GRADIENT_BYTES["small_cnn"])
    assert predicted[1] == pytest.approx(32 / 9e-3)
    assert predicted[2] == pytest.approx(2 * 32 / (9e-3 + exchange))
    assert predicted[4] < predicted[2]  # four ranks take turns on two cores
    assert "predicted" not in scaling.rows({("mlp", 1, False): Series([[1e-3]])})[0]


def measured(*models: str) -> dict[training.Case, Series]:
    cases = training.cases(list(models) or ["small_cnn"], [1, 2, 4])
    return {case: Series([[9e-3]]) for case in cases}


@pytest.mark.slow
def test_the_picture_of_scaling(tmp_path: Path) -> None:
    table = scaling.rows(measured(), scaling.host_parameters(short=2e-6, long=8e-3), 2)
    predicted = {row["ranks"]: row["predicted"] for row in table}
    panel = Figure().add_subplot()
    plot._scaling_panel(panel, table)
    (dashed,) = [line for line in panel.lines if line.get_linestyle() == "--"]
    assert np.asarray(dashed.get_ydata()).tolist() == [predicted[n] for n in (1, 2, 4)]
    plot.plot_scaling(str(tmp_path / "with"), table)
    without = [{k: v for k, v in row.items() if k != "predicted"} for row in table]
    plot.plot_scaling(str(tmp_path / "without"), without)
    pictures = [(tmp_path / name).read_bytes() for name in ("with.png", "without.png")]
    assert pictures[0] != pictures[1]


@pytest.mark.parametrize("models", [["mlp"], ["mlp", "alexnet"], ["mlp", "alexnet", "resnet50"]])
def test_the_legend_of_scaling_is_within_the_picture(
    models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(plot, "save", lambda figure, _: figures.append(figure))
    parameters = scaling.host_parameters(short=2e-6, long=8e-3)
    plot.plot_scaling("scaling", scaling.rows(measured(*models), parameters, 2))
    (figure,) = figures
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y1 <= figure.bbox.y1
    tops = [panel.y1 for axes in figure.axes if (panel := axes.get_tightbbox())]
    assert len(tops) == len(models)
    assert max(tops) <= box.y0
