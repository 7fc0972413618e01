"""examples/sparse.py: a pruned net is cut, and trains on."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.plugin import run_job
from tests.plugin.jobs import ROOT

pytestmark = [pytest.mark.job, pytest.mark.slow]

SCRIPT = ROOT / "examples" / "sparse.py"


@pytest.mark.deadline(200)
def test_a_pruned_net_trains_on(tmp_path: Path) -> None:
    file = tmp_path / "net.npz"
    result = run_job(2, SCRIPT, args=["--output", str(file)], deadline=180).check()
    assert "[1]" not in result.stdout, "only rank 0 prints"
    words = dict(re.findall(r"\| (\w+) +\| +([\d,]+) \|", result.stdout))
    of = {name: int(count.replace(",", "")) for name, count in words.items()}
    assert of["hypergraph"] < of["block"]
    assert of["hypergraph"] < of["random"]
    before, after = re.findall(r"([\d.]+)%[,.]", result.stdout.splitlines()[-1])
    assert float(after) >= max(90.0, float(before))
    with np.load(file) as arrays:
        assert arrays["indptr_0"].shape == (257,)
