"""A rank of a net that is cut dies in the middle of an epoch: all others end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.outcomes import run_scenarios

pytestmark = [pytest.mark.job, pytest.mark.deadline(120), pytest.mark.slow]

SCRIPT = Path(__file__).parent / "scripts" / "cut_nets.py"


@pytest.mark.parametrize(("victim", "kind"), [(1, "partitioned"), (2, "sparse")])
def test_a_rank_dies(tmp_path: Path, victim: int, kind: str) -> None:
    outcomes = run_scenarios(3, SCRIPT, tmp_path, args=[str(victim), kind])
    outcomes.job.check(137)
    assert f"ringarrun: rank {victim} of 3 was killed by signal 9" in outcomes.job.stderr
    for outcome in outcomes.of("fit", sorted({0, 1, 2} - {victim})):
        outcome.expect("OpError", f"rank {outcome.rank} | ", f"rank {victim} ", within=60)
