"""Sharded training that fails, fails on every rank, within seconds, and says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.outcomes import Outcomes, run_scenarios

pytestmark = pytest.mark.job

SCRIPT = Path(__file__).parent / "scripts" / "sharded.py"
DIED = "rank 1 has died: its process is gone (killed or crashed; see its output)"
#: Who may mount a file system.
IS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = tmp_path_factory.mktemp("sharded")
    return run_scenarios(3, SCRIPT, folder, args=["small"] if IS_ROOT else [], deadline=100)


@pytest.mark.parametrize("name", ["offload", "grid"])
def test_ranks_that_differ(outcomes: Outcomes, name: str) -> None:
    for outcome in outcomes.of(name):
        outcome.expect("MismatchError", f"the same exchange.{name} on every rank")


@pytest.mark.parametrize(
    ("scenario", "name"),
    [("shard_ranks", 'DistributedOptimizer(shard_ranks="host")'), ("offload, no callback", "of")],
)
def test_ranks_of_which_one_asks_the_others(outcomes: Outcomes, scenario: str, name: str) -> None:
    for outcome in outcomes.of(scenario):
        assert outcome.kinds
        assert name in outcome.message, outcome
        assert outcome.seconds < 20


@pytest.mark.skipif(not IS_ROOT, reason="only root can mount a small file system")
def test_a_full_disk(outcomes: Outcomes) -> None:
    for outcome in outcomes.of("full disk"):
        outcome.expect("OSError", f"rank {outcome.rank} | ", "No space left on device")
        assert "(rank 1); make room, or name another folder" in outcome.message


def test_a_rank_that_dies_in_a_step(outcomes: Outcomes) -> None:
    outcomes.job.check(137)
    for outcome in outcomes.of("death", [0, 2]):
        outcome.expect("AbortedError", f"rank {outcome.rank} | ", DIED)
