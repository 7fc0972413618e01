"""A job of MPI over two hosts outlives ranks (ULFM)."""

from __future__ import annotations

import os
import re
import sys

import pytest

from tests.hosts import Hosts, open_mpi
from tests.hosts.scenarios import SCRIPTS
from tests.plugin import run_job
from tests.plugin.jobs import PYTHONPATH, left_in_shared_memory

pytestmark = [
    pytest.mark.job,
    pytest.mark.usefixtures("has_open_mpi"),
    pytest.mark.deadline(120),
]


@pytest.mark.slow
def test_ranks_that_are_lost_in_turn_leave_a_smaller_job(two: Hosts) -> None:
    """Killed, an exception, SIGTERM; see scripts/ulfm.py."""
    program = [sys.executable, str(SCRIPTS / "ulfm.py")]
    command = open_mpi(two, 2, program, options=["--with-ft", "ulfm"],
                       variables={"RINGAR_ELASTIC": "1"})  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TF_CPP_MIN_LOG_LEVEL": "3"}
    job = two[0].run(*command, env=environment, timeout=100, check=False)
    ends = re.findall(r"^(\d): 0 (\[.*\]) (-?\d+)$", job.stdout, re.MULTILINE)
    assert ends == [("1", "[4, 3, 2, 1]", "0")], (job.stdout, job.stderr)
    assert "; going back to the last commit" in job.stderr, job.stderr


def test_ranks_that_are_lost_in_the_middle_of_the_start() -> None:
    """The others leave each collective in which they wait, and meet; see scripts/ulfm_start.py."""
    program = [sys.executable, str(SCRIPTS / "ulfm_start.py")]
    command = open_mpi(None, 6, program, options=["--with-ft", "ulfm"],
                       variables={"RINGAR_ELASTIC": "1"})  # fmt: skip
    job = run_job(None, command, deadline=90)
    ends = sorted(re.findall(r"^(\d): (\[.*\]) (\d)$", job.stdout, re.MULTILINE))
    assert ends == [("0", "[5, 4, 3, 2]", "0"), ("1", "[5, 4, 3, 2]", "0")], job
    assert not left_in_shared_memory()
