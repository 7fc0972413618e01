"""examples/digits.py does what its first lines promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.plugin import JobResult, run_job
from tests.plugin.jobs import ROOT

pytestmark = pytest.mark.job

SCRIPT = ROOT / "examples" / "digits.py"


def cells(result: JobResult, name: str) -> list[float]:
    """The numbers of a row of the table: images/s, and percent of the ideal."""
    match = re.search(rf"^(?:\[0\] )?\| {name}.*?\|(.*)\|$", result.check().stdout, re.MULTILINE)
    assert match is not None, result
    return [float(cell.strip(" %").replace(",", "")) for cell in match[1].split("|")]


def accuracy(result: JobResult) -> float:
    match = re.search(r"Accuracy on images .*: ([\d.]+)%", result.check().stdout)
    assert match is not None, result
    return float(match[1])


@pytest.mark.deadline(200)
def test_two_ranks_reach_97_percent() -> None:
    result = run_job(2, SCRIPT, deadline=180)
    single, half = cells(result, "rank 0 alone, plain Keras")
    together, share = cells(result, "all ranks together: 2")
    ideal, everything = cells(result, "ideal: 2 times rank 0 alone")
    assert accuracy(result) >= 97.0
    assert min(single, together) > 0
    assert ideal == pytest.approx(2 * single, abs=1)
    assert share == pytest.approx(100 * together / ideal, abs=1)
    assert (half, everything) == (50, 100)
    assert "[1]" not in result.stdout, "only rank 0 prints"
    assert "Epoch 12/12" in result.stdout


def test_the_cores_of_a_rank_are_busy_with_another_process() -> None:
    (core,) = list(os.sched_getaffinity(0))[:1]
    script = (
        f"import os, sys, time; sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        f"import digits; os.sched_setaffinity(0, [{core}]); start = digits.foreign_seconds()\n"
        "time.sleep(4); print(digits.foreign_seconds() - start)"
    )
    busy = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", busy]) as other:
        try:
            result = run_job(None, [sys.executable, "-c", script], deadline=60)
        finally:
            other.kill()
    assert 3 < float(result.check().stdout) < 5


@pytest.mark.slow
def test_without_a_launcher() -> None:
    result = run_job(None, SCRIPT, args=["--epochs", "2"])
    assert cells(result, "all ranks together: 1")[0] > 0
