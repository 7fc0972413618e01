"""What benchmarks.autotune makes of reports."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.autotune import __main__ as autotune


def rank(tuned: list[float], **more: Any) -> Any:
    return {
        "settings": "buckets", "found": True, "other_bits": 0, "difference": 0.0, "differ": 0,
        "seconds": {"tuned": tuned, "defaults": [2.0, 2.0, 4.0]}, **more,
    }  # fmt: skip


def test_a_row_is_of_the_slowest_rank_and_compares_within_rounds() -> None:
    row = autotune.row("host", [rank([1.0, 1.0, 2.0]), rank([1.0, 1.8, 1.0])])
    assert (row["seconds"], row["min"], row["max"]) == (1.8, 1.0, 2.0)
    assert (row["default_seconds"], row["times"], row["wrong"]) == (2.0, 0.5, 0)
    assert [target.row()[-1] for target in autotune.targets([row])] == ["yes"]
    slow = autotune.row("host", [rank([2.1, 2.1, 4.2])] * 2)
    assert [target.row()[-1] for target in autotune.targets([row, slow])] == ["no"]
    assert "0.500" in autotune.text([row])


@pytest.mark.parametrize(
    ("case", "report", "wrong"),
    [
        ("host", {"other_bits": 3, "difference": 1e-9}, 2),
        ("hosts", {"other_bits": 3, "difference": 1e-9}, 0),
        ("hosts", {"difference": math.nan}, 2),
        ("hosts", {"differ": 5}, 10),
        ("host", {"found": False}, 1),
    ],
)
def test_wrong_results_are_counted(case: str, report: dict[str, Any], wrong: int) -> None:
    assert autotune.row(case, [rank([1.0, 1.0, 1.0], **report)] * 2)["wrong"] == wrong
