"""`--network-interface`: ranks listen at the named interface only, by IPv4 and by IPv6."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import Hosts
from tests.hosts.scenarios import SCRIPTS
from tests.plugin import fast_if
from tests.plugin.jobs import PYTHONPATH

pytestmark = [
    pytest.mark.job,
    pytest.mark.usefixtures("can_make_hosts"),
    pytest.mark.deadline(90),
]


@pytest.fixture(scope="module")
def pair() -> Iterator[Hosts]:
    """Two hosts with two interfaces, of which the second has an IPv6 address, too."""
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6")
    with Hosts(2) as hosts:
        for i, host in enumerate(hosts):
            ends = ["name", f"second{i}", "type", "veth", "peer", "name", "eth1"]
            hosts.switch("ip", "link", "add", *ends, "netns", str(host.pid))
            hosts.switch("ip", "link", "set", f"second{i}", "master", "switch", "up")
            host.run("sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/eth1/disable_ipv6")
            host.run("ip", "link", "set", "eth1", "up")
            host.run("ip", "address", "add", f"10.213.46.{i + 1}/24", "dev", "eth1")
            # No look for duplicates, which would take a second.
            host.run("ip", "address", "add", f"fd45::{i + 1}/64", "dev", "eth1", "nodad")
        yield hosts


@pytest.mark.parametrize(
    ("named", "network"),
    [fast_if(False, "eth1", "10.213.46."), ("eth9,fd45::/64", "fd45::")],
)
def test_ranks_use_the_named_interface_alone(
    named: str, network: str, pair: Hosts, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "ringar.launchers", "-H", "host0:1,host1:1"]
    command += ["--ssh-command", str(pair.agent), "--link", "tcp", "--network-interface", named]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TF_CPP_MIN_LOG_LEVEL": "3"}
    program = [sys.executable, str(SCRIPTS / "sockets.py"), str(tmp_path)]
    job = pair[0].run(*command, *program, env=environment, timeout=80, check=False)
    assert job.returncode == 0, job.stderr
    for rank in range(2):
        listens, connected = json.loads((tmp_path / f"{rank}.json").read_text())
        assert set(listens) == {f"{network}{rank + 1}"}, rank
        assert set(connected) == {f"{network}{rank + 1}"}, rank
        # One stream in each direction, or four where the ranks have measured that these carry more.
        assert len(connected) in (2, 8), rank


def test_a_host_without_the_interface_says_which_it_has(pair: Hosts) -> None:
    command = [sys.executable, "-m", "ringar.launchers", "-H", "host0:1,host1:1"]
    command += ["--ssh-command", str(pair.agent), "--network-interface", "eth7"]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    job: subprocess.CompletedProcess[str] = pair[0].run(
        *command, "true", env=environment, timeout=60, check=False
    )
    assert job.returncode != 0
    assert "host that has an address (lo, eth0, eth1), received eth7" in job.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_strangers_do_not_hurt_a_running_job(seed: int, pair: Hosts, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ringar.launchers", "-H", "host0:1,host1:1", "--link", "tcp"]
    command += ["--ssh-command", str(pair.agent)]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TF_CPP_MIN_LOG_LEVEL": "3"}
    program = [sys.executable, str(SCRIPTS / "besieged.py"), str(tmp_path)]
    job = pair[0].popen(*command, *program, env=environment, stderr=subprocess.PIPE)
    places = [tmp_path / f"{rank}.where" for rank in range(2)]
    while job.poll() is None and not all(place.exists() for place in places):
        time.sleep(0.05)
    targets = [str(word) for place in places for word in json.loads(place.read_text())[:2]]
    noise = pair[1].run(sys.executable, str(SCRIPTS / "noise.py"), str(seed), *targets)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 0, errors
    assert int(noise.stdout) > 100
    for rank in range(2):
        rounds, descriptors = json.loads((tmp_path / f"{rank}.json").read_text())
        assert rounds > 100
        assert descriptors < 100
