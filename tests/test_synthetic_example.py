"""examples/synthetic.py: modules that do not wait for gradients learn the digits."""

from __future__ import annotations

import re

import pytest

from tests.plugin import run_job
from tests.plugin.jobs import ROOT

pytestmark = [pytest.mark.job, pytest.mark.deadline(200)]

SCRIPT = ROOT / "examples" / "synthetic.py"


def accuracy(np: int, *options: str) -> tuple[float, str]:
    """Return the accuracy in percent, and the last line."""
    result = run_job(np, SCRIPT, args=options, deadline=180).check()
    match = re.search(rf"(\[0\] )?{np} modules, .* accuracy ([\d.]+)% .*", result.stdout)
    assert match is not None, result
    return float(match[2]), match[0]


@pytest.mark.slow
def test_two_ranks_learn_the_digits() -> None:
    percent, line = accuracy(2, "--slow-rank", "--epochs", "10")
    assert percent >= 90
    ahead = re.search(r"up to (\d+) batches ahead", line)
    assert ahead is not None
    assert int(ahead[1]) >= 3, "rank 0 goes on while the last one sleeps"


@pytest.mark.slow
@pytest.mark.deadline(300)  # three jobs
def test_other_gradients() -> None:
    true, synthetic, zero = (
        accuracy(4, "--synthesizer", kind)[0] for kind in ("true", "default", "zero")
    )
    assert synthetic >= true - 3
    assert zero <= true - 3
