"""A decoupled module goes on while the one above it is stopped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugin import run_job

pytestmark = [pytest.mark.job, pytest.mark.deadline(120)]

SCRIPT = Path(__file__).parent / "scripts" / "synthetic.py"


@pytest.mark.slow
def test_rank_0_goes_on_while_rank_1_is_stopped() -> None:
    """It does as many steps as it can, until `ahead` batches have no gradient."""
    result = run_job(2, SCRIPT).check()
    match = re.search(r"free (\d+) ([\d.]+), held (\d+) ([\d.]+)", result.stdout)
    assert match is not None, result
    free_steps, bound_steps = int(match[1]), int(match[3])
    assert min(float(match[2]), float(match[4])) > 1.8, "rank 1 was stopped for two seconds"
    assert free_steps >= 20, result.stdout
    assert bound_steps <= 5, result.stdout
