"""Training with compression on the wire, between ranks that only MPI connects."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.hosts.mpi import find_open_mpi, run_on_hosts

pytestmark = pytest.mark.job


@pytest.mark.slow
@pytest.mark.skipif(find_open_mpi() is None, reason="no mpirun of Open MPI")
@pytest.mark.deadline(100)
def test_training_converges() -> None:
    """Over a ring through MPI, where each rank counts as a host: float32 travels narrow."""
    script = Path(__file__).with_name("digits.py")
    job = run_on_hosts(None, 2, [sys.executable, str(script), "ring"], deadline=90).check()
    match = re.search(r"results (\{.*\})", job.stdout)
    assert match is not None, job
    results = json.loads(match[1])
    assert results["none"]["moved"] == 0.0, results
    for name in ("fp16", "bf16", "powersgd"):
        assert results[name]["moved"] > 0.0, f"{name} changed nothing: {results}"
        assert results[name]["accuracy"] > results["none"]["accuracy"] - 0.03, results
    assert max(results["fp16"]["moved"], results["bf16"]["moved"]) < 0.01, results
    assert results["none"]["accuracy"] > 0.92, results
