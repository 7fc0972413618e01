"""What benchmarks.scheduled makes of reports, and its picture."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.scheduled import __main__ as scheduled
from benchmarks.scheduled import designs
from benchmarks.scheduled import plot as scheduled_plot


def reached(rounds: float, rises: int = 0) -> dict[str, Any]:
    curve = [[0, 0.0, 8.0], [100, 0.5, 2.0], [200, 1.0, 1.001]]
    return {"rounds": rounds, "seconds": rounds / 100, "curve": curve, "rises": rises, "gap": 0.1}


REPORT = {
    "dynamic": reached(200),
    "round robin": reached(900),
    "random": reached(math.inf),
    "dynamic, unchecked": reached(math.inf, rises=7),
}


def test_rows() -> None:
    rows = {row["scheduler"]: row for row in scheduled.rows(REPORT)}
    assert rows["dynamic"]["rounds"] == 200
    assert rows["random"]["rounds"] is None
    assert not any(row["wrong"] for row in rows.values()), "unchecked updates may raise it"
    (faulty_row,) = scheduled.rows({"round robin": reached(900, rises=1)})
    assert faulty_row["wrong"]


def test_the_table_and_the_target() -> None:
    rows = scheduled.rows(REPORT)
    text = scheduled.table_text(rows)
    assert "not in 200" in text
    assert "10 ms" in text
    assert [target.measured for target in scheduled.targets(rows)] == [[4.5]]
    assert math.isnan(scheduled.targets(rows[:1])[0].measured[0])


def test_the_picture(tmp_path: Path) -> None:
    job = {"share": 1e-3, "rows": 400, "columns": 10_000}
    data = json.loads(json.dumps({"job": job, "rows": scheduled.rows(REPORT)}))
    scheduled_plot.draw(data, str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_the_design() -> None:
    x, y = designs.correlated(2000, 40)
    correlation = np.corrcoef(x.T)
    assert correlation[3, 4] == pytest.approx(designs.CORRELATION, abs=0.03)
    assert correlation[3, 5] == pytest.approx(designs.CORRELATION**2, abs=0.05)
    assert abs(correlation[9, 10]) < 0.1, "of two groups"
    alpha = designs.steepest(x, y)
    assert np.abs((x - x.mean(axis=0)).T @ (y - y.mean())).max() / 2000 == pytest.approx(alpha)


@pytest.mark.slow
@pytest.mark.job
def test_a_run(tmp_path: Path, results_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A small one, to the end: on 60 columns, with 2 ranks."""
    output = tmp_path / "run"
    options = [
        "--rows",
        "200",
        "--columns",
        "60",
        "--limit",
        "2000",
        "--share",
        "0.01",
        "--output",
        str(output),
    ]
    assert scheduled.main(options) == 0
    data = json.loads(output.with_suffix(".json").read_text())
    by_name = {row["scheduler"]: row for row in data["rows"]}
    assert by_name["dynamic"]["rounds"] is not None
    assert by_name["dynamic"]["rises"] == 0
    assert "round robin" in capsys.readouterr().out
    (recorded,) = results_folder.glob("*.json")
    assert "curve" not in recorded.read_text()
