"""What benchmarks.wavefront makes of reports, and its picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.wavefront import plot, report


def rank(seconds: dict[str, list[float]], chunk: int = 0, error: float = 1e-7) -> Any:
    return {
        "seconds": seconds,
        "errors": dict.fromkeys(seconds, error),
        "plans": {"auto": {"chunk": chunk, "blocks": []}} if "auto" in seconds else {},
    }


def report_of_ranks() -> dict[str, Any]:
    return {
        "one": [rank({"layers": [1.0, 1.2, 1.1]})],
        "ranks": [
            rank({"20": [0.6, 0.7, 0.6], "auto": [0.5, 0.5, 0.55]}, 10),
            rank({"20": [0.7, 0.6, 0.6], "auto": [0.55, 0.5, 0.5]}, 10),
        ],
        "threads": [rank({"layers": [0.6, 0.6, 0.6], "auto": [0.7, 0.7, 0.7]})],
    }


def test_rows_are_those_of_the_slowest_rank_beside_the_model() -> None:
    table = report.rows(16, 100, report_of_ranks(), 2)
    by_case = {(row["way"], row["case"]): row for row in table}
    assert by_case["ranks", "20"]["seconds"] == 0.7
    assert by_case["ranks", "20"]["model"] == pytest.approx(200 / 120)
    assert by_case["ranks", "auto"]["times"] == pytest.approx(1.1 / 0.55)
    assert math.isnan(by_case["threads", "auto"]["model"])
    text = report.text(table, 2)
    assert "auto: 10" in text
    assert "auto: layer by layer" in text
    assert "1.67x" in text


def test_targets_compare_the_choice_with_layer_by_layer() -> None:
    targets = report.targets(report.rows(16, 100, report_of_ranks(), 2), 2)
    verdicts = [target.row()[-1] for target in targets]
    assert verdicts == ["yes", "yes", "no"]  # threads: 0.6 s layer by layer, 0.7 s chosen


def test_wrong_numbers_are_told() -> None:
    report_with_nan = {"ranks": [rank({"5": [1.0]}, error=math.nan), rank({"5": [1.0]})]}
    assert report.faults(report_with_nan) == ["ranks, 5: differs by nan"]
    assert report.faults(report_of_ranks()) == []


def test_the_picture(tmp_path: Path) -> None:
    cells = [
        {"what": kind, "layer": layer, "chunk": chunk, "begin": chunk + layer, "end": chunk + 1.5}
        for layer in range(2) for chunk in range(3) for kind in ("forward", "wait", "backward")
    ]  # fmt: skip
    timeline = [[cell for cell in cells if cell["layer"] == rank] for rank in range(2)]
    plot.draw({"timeline": timeline, "job": {"layers": 2}}, str(tmp_path / "picture"))
    assert (tmp_path / "picture.png").stat().st_size > 5000
    with pytest.raises(ValueError, match="received none"):
        plot.draw({"timeline": [[], []], "job": {"layers": 2}}, str(tmp_path / "picture"))
