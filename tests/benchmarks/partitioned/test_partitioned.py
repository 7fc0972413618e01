"""What benchmarks.partitioned makes of reports, and its picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.processes import JobFailedError
from benchmarks.partitioned import __main__ as partitioned
from benchmarks.partitioned import plot
from benchmarks.partitioned.__main__ import Measured


def report(traffic: float, loss: float = 2.0, faults: tuple[str, ...] = ()) -> dict[str, Any]:
    """A rank's report."""
    return {
        "rounds": [[1.0, 3.0], [2.0, 2.0]], "losses": [2.5, loss], "parameters": 7,
        "bytes": {"layer0": traffic, "layer1": traffic, "join": 5.0, "gradients": 40.0},
        "wrong_bytes": list(faults), "error": "", "memory": 3 * 2**20,
    }  # fmt: skip


def test_a_row_is_of_the_busiest_rank_and_of_layers_alone() -> None:
    row = partitioned.summary("local", 2, [report(10.0), report(30.0)])
    assert (row["bytes"], row["gradients"], row["seconds"]) == (60.0, 40.0, 2.0)


def test_wrong_numbers_are_named() -> None:
    rows = [
        partitioned.summary("local", 1, [report(0.0)]),
        partitioned.summary("local", 2, [report(9.0, 2.1), report(9.0)]),
        partitioned.summary("local", 4, [report(9.0), report(9.0, faults=("layer1",))]),
    ]
    losses, traffic = partitioned.faults(rows)
    assert losses.startswith("local, 2 ranks: losses")
    assert traffic == "local, 4 ranks: bytes of layer1"


def test_memory_must_be_too_little_for_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(module: str, options: Any, ranks: int, **how: Any) -> Any:
        if ranks == 1:
            raise JobFailedError("a line\nstd::bad_alloc")
        return [report(1.0)] * 2

    measurements = Measured()
    monkeypatch.setattr(partitioned, "run_worker", fails)
    partitioned.try_memory(measurements, {}, 2**20)
    assert [row["error"] for row in measurements.memory] == ["std::bad_alloc", ""]
    assert not measurements.faults
    table = partitioned.memory_text(measurements.memory)
    assert "fails: out of memory" in table
    assert "3 MiB" in table

    monkeypatch.setattr(partitioned, "run_worker", lambda *a, **k: [report(1.0)])
    partitioned.try_memory(other := Measured(), {}, 2**20)
    assert other.faults == ["memory: one rank trained within the limit"]


def test_the_picture(tmp_path: Path) -> None:
    rows = [
        partitioned.summary(kind, ranks, [report(100.0 * ranks)])
        for kind in partitioned.KINDS
        for ranks in (1, 2, 4)
    ]
    assert "| dense " in partitioned.rows_text(rows)
    data = json.loads(json.dumps({"equal": rows}))
    plot.draw(data, str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").stat().st_size > 10_000
