"""A rank of a net that is cut dies in the middle of an epoch: all others end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.outcomes import run_scenarios
from tests.plugin import fast_if

pytestmark = [pytest.mark.job, pytest.mark.deadline(120)]

SCRIPT = Path(__file__).parent / "scripts" / "cut_nets.py"


@pytest.mark.parametrize(
    ("victim", "kind"),
    [
        fast_if(False, 1, "partitioned"),
        fast_if(False, 2, "sparse"),
        fast_if(False, 0, "microbatch"),
        (1, "delayed"),
        fast_if(False, 2, "decoupled"),
        fast_if(False, 1, "synthetic"),
    ],
)
def test_a_rank_dies(tmp_path: Path, victim: int, kind: str) -> None:
    outcomes = run_scenarios(3, SCRIPT, tmp_path, args=[str(victim), kind])
    outcomes.job.check(137)
    assert f"ringarrun: rank {victim} of 3 was killed by signal 9" in outcomes.job.stderr
    has = "" if kind in ("partitioned", "sparse") else "has"
    for outcome in outcomes.of("fit", sorted({0, 1, 2} - {victim})):
        error = "PeerLostError" if kind == "synthetic" else "OpError"
        outcome.expect(error, f"rank {outcome.rank} | ", f"rank {victim} {has}", within=60)
