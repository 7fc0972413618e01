"""examples/hogwild.py: ranks that share weights without locks learn the digits."""

from __future__ import annotations

import re

import pytest

from tests.plugin import JobResult, run_job
from tests.plugin.jobs import ROOT

pytestmark = pytest.mark.job

SCRIPT = ROOT / "examples" / "hogwild.py"


def row(result: JobResult) -> tuple[int, str, float, float]:
    """The numbers of the table's only row."""
    match = re.search(r"\| +(\d+) \| (\w+) +\| +([\d,]+) \| +([\d.]+)% \|", result.check().stdout)
    assert match is not None, result
    return int(match[1]), match[2], float(match[3].replace(",", "")), float(match[4])


@pytest.mark.slow
@pytest.mark.deadline(200)
def test_two_ranks_learn_the_digits() -> None:
    result = run_job(2, SCRIPT, deadline=180)
    ranks, way, speed, accuracy = row(result)
    assert (ranks, way) == (2, "atomic")
    assert speed > 0
    assert accuracy >= 93.0
    assert "[1]" not in result.stdout, "only rank 0 prints"


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--racy", "--allreduce"])
def test_other_ways(option: str) -> None:
    _, way, _, accuracy = row(run_job(2, SCRIPT, args=[option]))
    assert way == option[2:]
    assert accuracy >= 93.0


@pytest.mark.slow
def test_without_a_launcher() -> None:
    ranks, _, _, accuracy = row(run_job(None, SCRIPT))
    assert ranks == 1
    assert accuracy >= 93.0
