"""What benchmarks.sharded makes of reports, its picture, and one small real run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import results
from benchmarks.sharded import __main__ as sharded
from benchmarks.sharded import plot, worker

LOSSES = [1.0, 0.5]


def of_memory(slots: int, losses: list[float] = LOSSES) -> dict[str, Any]:
    return {"weights": 100, "held": slots, "peak": 300, "losses": losses}


def of_time(slow: float) -> dict[str, Any]:
    """The second round is twice as slow for all."""
    seconds = {
        name: [[slow * step * way] * 3 for step in (1.0, 2.0)]
        for name, way in (("none", 1.0), ("optimizer", 1.0), ("gradients", 1.1), ("weights", 1.2))
    }
    return {
        "seconds": seconds,
        "bytes": {"none": 1000, "optimizer": 1000, "gradients": 1000, "weights": 1500},
        "losses": dict.fromkeys(seconds, LOSSES),
    }


def test_rows_and_targets() -> None:
    plain = sharded.memory_row(None, 2, [of_memory(300)] * 2)
    cut = sharded.memory_row("optimizer", 2, [of_memory(199), of_memory(202)])
    weights = sharded.memory_row("weights", 2, [of_memory(170)])
    assert (plain["expected"], cut["expected"], cut["held"]) == (300, 200, 202)
    assert weights["expected"] == 150
    times = sharded.time_rows("mlp", 2, [of_time(1.0), of_time(1.5)])
    assert [row["shard"] for row in times] == ["none", "optimizer", "gradients", "weights"]
    assert times[2]["times"] == pytest.approx(1.1)
    assert times[0]["min"] == pytest.approx(1.5)
    targets = sharded.targets([plain, cut], times)
    reached = ["yes", "yes", "yes", "no", "yes", "yes", "yes"]
    assert [target.row()[-1] for target in targets] == reached
    assert sharded.targets([plain, weights], [])[0].row()[-1] == "no"
    assert "202 MB" not in sharded.memory_text([plain, cut])  # of bytes
    assert "1.100" in sharded.time_text(times)


def test_slots_on_disk_take_no_memory() -> None:
    rows = [sharded.memory_row(worker.OFFLOADED, 2, [of_memory(n)]) for n in (104, 120)]
    targets = [sharded.targets([row], []) for row in rows]
    assert [[target.row()[-1] for target in of_row] for of_row in targets] == [["yes"], ["no"]]


def test_other_losses_are_wrong() -> None:
    plain = sharded.memory_row(None, 2, [of_memory(200)])
    for losses in ([1.0, 0.6], [1.0, math.nan]):
        cut = sharded.memory_row("optimizer", 2, [of_memory(100, losses)])
        assert sharded.wrong_losses([plain, cut]) == 1
    assert sharded.wrong_losses([plain, plain]) == 0


def test_unknown_models() -> None:
    with pytest.raises(SystemExit):
        sharded.parse(["--models", "huge"])


@pytest.mark.slow
@pytest.mark.job
def test_small_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    arguments = ["--ranks", "2", "--layers", "1", "--width", "8", "--models", "mlp"]
    arguments += ["--steps", "1", "--rounds", "1", "--output", str(tmp_path / "sharded")]
    assert sharded.main([*arguments, "--only", "time"]) == 0
    assert "mlp, weights: bytes over an allreduce" in capsys.readouterr().out
    data = json.loads((tmp_path / "sharded.json").read_text())
    assert [row["shard"] for row in data["rows"]] == ["none", "optimizer", "gradients", "weights"]
    data["rows"].append({"shard": "optimizer", "ranks": 2, "held": 200, "weights": 100})
    plot.draw(data, str(tmp_path / "picture"))
    assert (tmp_path / "picture.png").stat().st_size > 10_000
