"""The example of scheduled updates solves both problems."""

from __future__ import annotations

import re

import pytest

from tests.plugin import JobResult, run_job
from tests.plugin.jobs import ROOT

pytestmark = pytest.mark.job

SCRIPT = ROOT / "examples" / "scheduled.py"


def row(result: JobResult) -> tuple[str, int, float, float, float]:
    """The problem, the ranks, the objectives and the error of the table's only row."""
    match = re.search(
        r"\| (\w+) \| (\d+) \| [\d,]+ \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) of",
        result.check().stdout,
    )
    assert match is not None, result
    return match[1], int(match[2]), float(match[3]), float(match[4]), float(match[5])


def test_a_regression_on_two_ranks() -> None:
    result = run_job(2, SCRIPT)
    problem, ranks, objective, first, error = row(result)
    assert (problem, ranks) == ("lasso", 2)
    assert objective < 0.6 * first
    assert error < 0.8
    assert "of 65 columns are used" in result.stdout
    assert "[1]" not in result.stdout, "only rank 0 prints"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [None, 2, 3])
def test_a_factorization(ranks: int | None) -> None:
    options = ["--problem", "factorization"]
    problem, count, objective, first, error = row(run_job(ranks, SCRIPT, args=options))
    assert (problem, count) == ("factorization", ranks or 1)
    assert objective < 0.3 * first
    assert error < 0.6
