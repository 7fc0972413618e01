"""examples/horovod_digits.py: scripts as Horovod's documentation has them learn the digits."""

from __future__ import annotations

import re

import pytest

from tests.plugin import run_job
from tests.plugin.jobs import ROOT

pytestmark = [pytest.mark.job, pytest.mark.slow]


@pytest.mark.parametrize("mode", [[], ["--tape"]], ids=["fit", "tape"])
@pytest.mark.parametrize("np", [1, 2, 3])
def test_ranks_learn_the_digits(np: int, mode: list[str]) -> None:
    job = run_job(np, ROOT / "examples" / "horovod_digits.py", args=mode, deadline=100).check()
    match = re.search(rf"accuracy on {np} ranks: ([\d.]+)%", job.stdout)
    assert match is not None, job
    assert float(match[1]) > 93
