"""What benchmarks.split makes of reports, and its picture."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.split import __main__ as split
from benchmarks.split import plot as split_plot
from benchmarks.split.__main__ import ALL, HYBRID, ONE, PARALLEL, SPLIT, UNGROUPED, Measured


def row(seconds: float = 1.0, sent_bytes: float = 0.0, parameters: int = 100, **fields: Any) -> Any:
    return {
        "seconds": seconds, "min": seconds, "max": seconds, "images": 64 / seconds,
        "bytes": sent_bytes, "bytes_per_image": sent_bytes / 64, "by_layer": {"fc6": sent_bytes},
        "memory": 2**30, "parameters": parameters, "slots": parameters, "losses": [7.0, 6.5],
        **fields,
    }  # fmt: skip


def test_a_row_is_of_the_slowest_and_the_busiest_rank() -> None:
    ranks = [
        {"rounds": [[1.0, 3.0], [2.0, 2.0]], "bytes": {"fc6": 10.0}, "memory": 5, "parameters": 7,
         "slots": 3, "losses": [1.0]},
        {"rounds": [[2.0, 2.0], [4.0, 4.0]], "bytes": {"fc6": 6.0, "fc7": 6.0}, "memory": 6,
         "parameters": 7, "slots": 3, "losses": [1.0]},
    ]  # fmt: skip
    row_of_ranks = split.summary(ranks, batch=64)
    assert (row_of_ranks["seconds"], row_of_ranks["min"], row_of_ranks["max"]) == (3.25, 2.5, 4.0)
    assert (row_of_ranks["bytes"], row_of_ranks["bytes_per_image"], row_of_ranks["memory"]) == (
        12.0,
        12 / 64,
        6,
    )
    assert row_of_ranks["images"] == pytest.approx(64 / 3.25)


def test_targets() -> None:
    measurements = Measured(
        {
            ONE: row(),
            PARALLEL: row(sent_bytes=240.0),
            HYBRID: row(sent_bytes=15.0),
            SPLIT: row(parameters=50),
        },
        {PARALLEL: row(12.0), HYBRID: row(3.0)},
    )
    assert [target.measured for target in split.targets(measurements)] == [
        [50.0, 50.0],
        [16.0],
        [4.0],
    ]
    assert all("yes" in target.row() for target in split.targets(measurements))
    nothing = [target.measured for target in split.targets(Measured())]
    assert all(math.isnan(figure) for figures in nothing for figure in figures)


def test_losses_that_are_not_those_of_one_process_are_counted() -> None:
    local = {ONE: row(), UNGROUPED: row(losses=[5.0, 4.0])}
    rows = {SPLIT: row(), ALL: row(losses=[5.0, 4.1]), HYBRID: row(losses=[7.1, 6.6])}
    assert split.wrong_losses(local, rows) == 3


ROWS = {PARALLEL: row(sent_bytes=2e8), SPLIT: row(sent_bytes=4e6), HYBRID: row(sent_bytes=1e7)}


def test_the_tables() -> None:
    assert "| hybrid " in split.rows_text(ROWS)
    assert "sent per step by" in split.layers_text(ROWS)


@pytest.mark.slow
def test_the_picture(tmp_path: Path) -> None:
    data = {"job": {"batch": 64}, "local": [{"plan": p.title, **r} for p, r in ROWS.items()]}
    (tmp_path / "split.json").write_text(json.dumps(data))
    split_plot.draw(data, str(tmp_path / "split.png"))
    assert (tmp_path / "split.png").stat().st_size > 10_000
