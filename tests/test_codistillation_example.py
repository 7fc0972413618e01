"""examples/codistillation.py: nets that teach each other differ less."""

from __future__ import annotations

import re

import pytest

from tests.plugin import JobResult, run_job
from tests.plugin.jobs import ROOT

pytestmark = pytest.mark.job

SCRIPT = ROOT / "examples" / "codistillation.py"


def table(result: JobResult) -> dict[str, tuple[float, float]]:
    """Accuracy and disagreement of each way of training, in percent."""
    out = result.check().stdout
    assert "[1]" not in out, "only rank 0 prints"
    rows = re.findall(r"\| (\w+) +\| +([\d.]+)% \| +([\d.]+)% \|", out)
    return {name: (float(accuracy), float(disagreement)) for name, accuracy, disagreement in rows}


@pytest.mark.slow
@pytest.mark.deadline(200)
@pytest.mark.parametrize(("ranks", "distance"), [(2, "kl"), (4, "mse")])
def test_groups_come_to_agree(ranks: int, distance: str) -> None:
    results = table(run_job(ranks, SCRIPT, args=["--distance", distance], deadline=180))
    assert results["codistilled"][0] >= max(85.0, results["independent"][0] - 1)
    assert results["codistilled"][1] < results["independent"][1]


@pytest.mark.slow
def test_groups_that_do_not_divide_the_ranks() -> None:
    result = run_job(2, SCRIPT, args=["--groups", "3"])
    assert result.code != 0
    assert "`groups` must divide the number of ranks, 2" in result.stderr
