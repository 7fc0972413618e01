"""examples/partitioned.py: strips of digits are classified as one process would."""

from __future__ import annotations

import re

import pytest

from tests.plugin import fast_if, run_job
from tests.plugin.jobs import ROOT

pytestmark = pytest.mark.job

SCRIPT = ROOT / "examples" / "partitioned.py"


@pytest.mark.deadline(200)
@pytest.mark.parametrize(("ranks", "args"), [(2, []), fast_if(False, 4, ["--tiles", "2", "2"])])
def test_it_learns(ranks: int, args: list[str]) -> None:
    epochs = ["--epochs", "2"] if ranks == 2 else []
    out = run_job(ranks, SCRIPT, args=[*args, *epochs], deadline=180).check().stdout
    (accuracy,) = re.findall(r"([\d.]+)% of 360 test images", out)
    assert float(accuracy) > 85
    assert re.search(r"\| conv \| \d+ \| [\d,]+ \|", out)
    assert not re.search(r"\| pool \| \d+ \| [1-9]", out), "windows of 2 lie within strips"
