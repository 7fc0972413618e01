"""Where the network gives each connection a rate of its own, ranks have several to each other."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.hosts import Faults, Hosts
from tests.hosts.scenarios import SCRIPTS
from tests.plugin.jobs import PYTHONPATH

pytestmark = [pytest.mark.alone, pytest.mark.job, pytest.mark.deadline(130)]


def test_ranks_measure_that_several_streams_carry_more(
    can_make_hosts: None, tmp_path: Path
) -> None:
    """Other work on the machine may hide it for a moment, so there are three tries."""
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TF_CPP_MIN_LOG_LEVEL": "3"}
    program = [sys.executable, str(SCRIPTS / "sockets.py"), str(tmp_path)]
    command = [sys.executable, "-m", "ringar.launchers", "-H", "host0:1,host1:1", "--link", "tcp"]
    with Hosts(2) as hosts, hosts[1].relayed(Faults(rate=4e6)):
        command += ["--ssh-command", str(hosts.agent)]
        for _ in range(3):
            job = hosts[0].run(*command, *program, env=environment, timeout=40, check=False)
            assert job.returncode == 0, job.stderr
            of_ranks = [connections_to_others(tmp_path / f"{rank}.json") for rank in range(2)]
            if all(len(connections) >= 2 * 4 for connections in of_ranks):  # four in each direction
                return
    pytest.fail(f"each rank should have four streams in each direction to the other: {of_ranks}")


def connections_to_others(file: Path) -> list[str]:
    _, connections = json.loads(file.read_text())
    return [address for address in connections if not address.startswith("127.")]
