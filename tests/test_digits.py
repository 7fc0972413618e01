"""examples/digits.py does what its first lines promise."""

from __future__ import annotations

import re

import pytest

from tests.plugin import JobResult, run_job
from tests.plugin.jobs import ROOT

pytestmark = pytest.mark.job

SCRIPT = ROOT / "examples" / "digits.py"


def row(result: JobResult) -> list[float]:
    """The numbers of the table's only row."""
    match = re.search(r"^(?:\[0\] )?\|( *\d.*)\|$", result.check().stdout, re.MULTILINE)
    assert match is not None, result
    return [float(cell.strip(" %x").replace(",", "")) for cell in match[1].split("|")]


@pytest.mark.deadline(200)
def test_two_ranks_reach_97_percent() -> None:
    result = run_job(2, SCRIPT, deadline=180)
    ranks, together, accuracy, single, gain = row(result)
    assert ranks == 2
    assert accuracy >= 97.0
    assert min(together, single) > 0
    assert gain == pytest.approx(together / single, rel=0.02)
    assert "[1]" not in result.stdout, "only rank 0 prints"
    assert "Epoch 12/12" in result.stdout


@pytest.mark.slow
def test_without_a_launcher() -> None:
    result = run_job(None, SCRIPT, args=["--epochs", "2"])
    assert row(result)[0] == 1
