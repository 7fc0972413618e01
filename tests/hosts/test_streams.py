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

pytestmark = [pytest.mark.alone, pytest.mark.job, pytest.mark.deadline(90)]


def test_ranks_measure_that_several_streams_carry_more(
    can_make_hosts: None, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TF_CPP_MIN_LOG_LEVEL": "3"}
    program = [sys.executable, str(SCRIPTS / "sockets.py"), str(tmp_path)]
    with Hosts(2) as hosts, hosts[1].relayed(Faults(rate=4e6)):
        command = [sys.executable, "-m", "ringar.launchers", "-H", "host0:1,host1:1"]
        command += ["--link", "tcp", "--ssh-command", str(hosts.agent)]
        job = hosts[0].run(*command, *program, env=environment, timeout=80, check=False)
    assert job.returncode == 0, job.stderr
    for rank in range(2):
        _, connections = json.loads((tmp_path / f"{rank}.json").read_text())
        to_other = [address for address in connections if not address.startswith("127.")]
        assert len(to_other) >= 2 * 4, connections  # four streams in each direction
