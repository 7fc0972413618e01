"""What benchmarks.autotune makes of reports."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.autotune import __main__ as autotune


def rank(tuned: list[float], fastest: list[float], **fields: Any) -> Any:
    seconds = {
        "tuned": tuned, "defaults": [2.0, 2.0, 4.0],
        "fastest": {"lucky": [9.0] * 3, "buckets": tuned, "ring": fastest},
    }  # fmt: skip
    return {
        "settings": "buckets", "found": True, "other_bits": 0, "difference": 0.0, "differ": 0,
        "grid": {"lucky": 0.1, "buckets": 1.0, "ring": 1.1, "slow": 3.0}, "seconds": seconds,
        **fields,
    }  # fmt: skip


def test_a_row_compares_within_rounds() -> None:
    row = autotune.row("host", "here", [rank([1.0, 1.8, 2.0], [1.0, 1.6, 1.6])] * 2)
    assert (row["seconds"], row["min"], row["max"]) == (1.8, 1.0, 2.0)
    assert (row["default_seconds"], row["times"], row["wrong"]) == (2.0, 0.5, 0)
    # The settings that were the fastest when each was measured once may be slow.
    assert (row["best"], row["best_seconds"], row["times_of_best"]) == ("ring", 1.6, 1.125)
    assert [target.row()[-1] for target in autotune.targets([row])] == ["yes", "no"]
    slow = autotune.row("host", "here", [rank([2.1, 2.1, 4.2], [2.1, 2.1, 4.2])] * 2)
    assert [target.row()[-1] for target in autotune.targets([row, slow])] == ["no", "no"]
    assert [target.row()[-1] for target in autotune.targets([slow])] == ["no", "yes"]
    assert all(cell in autotune.text([row]) for cell in ("0.500", "1.125", "| 4 "))


@pytest.mark.parametrize(
    ("case", "report", "count"),
    [
        ("host", {"other_bits": 3, "difference": 1e-9}, 2),
        ("hosts", {"other_bits": 3, "difference": 1e-9}, 0),
        ("hosts", {"difference": math.nan}, 2),
        ("hosts", {"differ": 5}, 10),
        ("host", {"found": False}, 1),
    ],
)
def test_wrong_results_are_counted(case: str, report: dict[str, Any], count: int) -> None:
    report_of_rank = rank([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], **report)
    assert autotune.row(case, case, [report_of_rank] * 2)["wrong"] == count
