"""examples/sharded.py: ranks with slots of their own learn the digits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugin import JobResult, run_job
from tests.plugin.jobs import ROOT

pytestmark = pytest.mark.job

SCRIPT = ROOT / "examples" / "sharded.py"


def row(result: JobResult) -> tuple[int, str, float, float]:
    """The numbers of the table's last row."""
    match = re.search(
        r"\| +(\d+) \| (\w+) +\| +([\d.]+) MB \| +([\d.]+)% \|", result.check().stdout
    )
    assert match is not None, result
    return int(match[1]), match[2], float(match[3]), float(match[4])


@pytest.mark.deadline(200)
def test_two_ranks_learn_the_digits(tmp_path: Path) -> None:
    file = tmp_path / "digits.keras"
    result = run_job(2, SCRIPT, args=["--width", "256", "--save", str(file)], deadline=180)
    ranks, shard, slots, accuracy = row(result)
    assert (ranks, shard) == (2, "gradients")
    assert slots == pytest.approx(8 * (65 * 256 + 257 * 256 + 257 * 10) / 2 / 1e6, abs=0.1)
    assert accuracy >= 93.0
    assert "available: " in result.stdout
    assert file.exists()


@pytest.mark.slow
def test_without_shards() -> None:
    ranks, shard, slots, accuracy = row(
        run_job(2, SCRIPT, args=["--width", "256", "--shard", "none"])
    )
    assert (ranks, shard) == (2, "none")
    assert slots == pytest.approx(8 * (65 * 256 + 257 * 256 + 257 * 10) / 1e6, abs=0.1)
    assert accuracy >= 93.0


@pytest.mark.slow
@pytest.mark.deadline(400)
def test_four_ranks_train_what_one_cannot_hold() -> None:
    width = 4096
    arguments = ["--width", str(width), "--layers", "8", "--limit-gb", "2", "--epochs", "1"]
    arguments += ["--batch-size", "120"]
    single = run_job(1, SCRIPT, args=[*arguments, "--shard", "none"], deadline=180)
    assert single.code != 0
    # A library may not survive that it gets no memory.
    assert re.search("OOM when allocating|bad_alloc|SIGSEGV|SIGABRT", single.stderr), single
    four = run_job(4, SCRIPT, args=[*arguments, "--shard", "weights"], deadline=180)
    ranks, shard, slots, _ = row(four)
    parameters = 65 * width + 7 * (width + 1) * width + 10 * (width + 1)
    assert (ranks, shard) == (4, "weights")
    assert slots == pytest.approx(8 * parameters / 4 / 1e6, rel=0.01)
