"""examples/asynchronous.py: nets learn by each method."""

from __future__ import annotations

import re

import pytest

from tests.plugin import run_job
from tests.plugin.jobs import ROOT

pytestmark = [pytest.mark.job, pytest.mark.slow]

SCRIPT = ROOT / "examples" / "asynchronous.py"
METHODS = ["gradients", "local", "slowmo", "diloco", "easgd", "downpour", "bounded"]


@pytest.mark.deadline(200)
@pytest.mark.parametrize("ranks", [2, 4])
def test_each_method_learns_digits(ranks: int) -> None:
    out = run_job(ranks, SCRIPT, deadline=180).check().stdout
    assert "[1]" not in out, "only rank 0 prints"
    rows = re.findall(r"\| (\w+) +\| +([\d.]+)% \|", out)
    assert [name for name, _ in rows] == METHODS
    assert all(float(right) > 88 for _, right in rows), rows


def test_a_method_that_is_unknown() -> None:
    result = run_job(1, SCRIPT, args=["--methods", "local,none"])
    assert result.code != 0
    assert "--methods: unknown none; known are gradients, local" in result.stderr
