"""A rank that ends, or does not come, while others have access to its part of a window."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.outcomes import Outcomes, run_scenarios
from tests.plugin import fast_if

pytestmark = pytest.mark.job


def run(folder: Path, how: str) -> Outcomes:
    script = Path(__file__).parent / "scripts" / "windows.py"
    return run_scenarios(3, script, folder, args=[how], deadline=60)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("killed", "rank 1 has died: its process is gone (killed or crashed; see its output)"),
        fast_if(False, "leaves", "rank 1 has left: it called ringar.shutdown()"),
    ],
)
def test_a_rank_ends(tmp_path: Path, how: str, why: str) -> None:
    """Its part fails, others can be used, and the window cannot be closed."""
    outcomes = run(tmp_path, how)
    for outcome in outcomes.of("loop", [0, 2]):
        title = f'rank {outcome.rank} | accumulate in window "shared": expected rank 1 to '
        outcome.expect("PeerLostError", title, why)
    outcomes.expect_success("others", [0, 2])
    for outcome in outcomes.of("close", [0, 2]):
        outcome.expect("PeerLostError", "close_window", "rank 1")


def test_a_rank_does_not_open_it(tmp_path: Path) -> None:
    for outcome in run(tmp_path, "deadline").of("open", [0, 2]):
        assert {"DeadlineError", "PeerLostError"} & set(outcome.kinds), outcome
        outcome.expect("RingarError", 'open_window "shared (float32, ', "rank 1")
