"""A host that disappears, and ranks on several hosts that disagree."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults import test_disagreement as disagreement
from tests.faults.outcomes import Outcomes, run_scenarios
from tests.hosts import Host, Hosts
from tests.hosts.scenarios import SCRIPTS, run_scenarios_on

pytestmark = [
    pytest.mark.job,
    pytest.mark.usefixtures("can_make_hosts", "has_open_mpi"),
    pytest.mark.deadline(150),
]

DEADLINE = 4.0
RANKS = (1, 1, 2)
VICTIM = 1  # the host, and its one rank
OTHERS = (0, 2, 3)
# A host that goes is no news for TCP: only the deadline says so. Then there is one more wait, at
# most, until the rank that hit its own has told the others.
WITHIN = DEADLINE + 3.0


def lose_a_host(
    folder: Path, how: Callable[[Host], object], options: list[str]
) -> tuple[Outcomes, list[int]]:
    """Runs a job of which a host disappears; returns what its ranks saw and what was left."""
    with Hosts(len(RANKS)) as hosts:
        disappearance = threading.Thread(target=when_all_loop, args=[folder, hosts[VICTIM], how])
        disappearance.start()
        outcomes = run_scenarios_on(
            hosts, RANKS, SCRIPTS / "disappear.py", folder, args=[str(DEADLINE)],
            options=options, deadline=60,
        )  # fmt: skip
        disappearance.join()
    return outcomes, []


def when_all_loop(folder: Path, victim: Host, how: Callable[[Host], object]) -> None:
    give_up = time.monotonic() + 50
    while time.monotonic() < give_up:
        if all((folder / f"rank {rank} is in its loop").exists() for rank in range(sum(RANKS))):
            break
        time.sleep(0.05)
    how(victim)
