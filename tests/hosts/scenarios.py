"""Runs a script of scenarios (tests/faults/job.py) on hosts and reads what its ranks wrote down."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.outcomes import Outcomes, read_outcomes
from tests.hosts.hosts import Hosts
from tests.hosts.mpi import run_on_hosts

SCRIPTS = Path(__file__).with_name("scripts")


def run_scenarios_on(
    hosts: Hosts | None,
    ranks: int | Sequence[int],
    script: Path,
    folder: Path,
    *,
    args: Sequence[str] = (),
    **options: Any,
) -> Outcomes:
    """What the ranks of `script` saw; the options are those of `run_on_hosts`."""
    folder.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, str(script), str(folder), *args]
    job = run_on_hosts(hosts, ranks, program, **options)
    if isinstance(ranks, int):
        ranks = [ranks] * (len(hosts) if hosts else 1)
    return read_outcomes(job, folder, sum(ranks))
