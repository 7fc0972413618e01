"""A module of a pipeline that dies in the middle of an epoch stops all others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.outcomes import run_scenarios
from tests.plugin import fast_if

pytestmark = [pytest.mark.job, pytest.mark.deadline(120)]

SCRIPT = Path(__file__).parent / "scripts" / "pipeline.py"


@pytest.mark.parametrize(
    ("victim", "schedule"),
    [
        fast_if(False, 0, "microbatch"),
        (1, "delayed"),
        fast_if(False, 2, "decoupled"),
        fast_if(False, 1, "synthetic"),
    ],
)
def test_a_module_dies(tmp_path: Path, victim: int, schedule: str) -> None:
    outcomes = run_scenarios(3, SCRIPT, tmp_path, args=[str(victim), schedule])
    outcomes.job.check(137)
    assert f"ringarrun: rank {victim} of 3 was killed by signal 9" in outcomes.job.stderr
    for outcome in outcomes.of("fit", sorted({0, 1, 2} - {victim})):
        kind = "PeerLostError" if schedule == "synthetic" else "OpError"
        outcome.expect(kind, f"rank {outcome.rank} | ", f"rank {victim} has", within=60)
