"""Hosts that are hard to reach: by IPv6 alone, or by names that ssh alone knows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.hosts import Hosts
from tests.launchers.programs import write
from tests.plugin.jobs import PYTHONPATH

pytestmark = [
    pytest.mark.job,
    pytest.mark.usefixtures("can_make_hosts"),
    pytest.mark.deadline(150),
]

CALLER = """
import sys
import ringar

def meet():
    import numpy as np
    import socket
    ringar.init(start_timeout=20)
    return socket.gethostname(), ringar.allreduce(np.ones(2), op=ringar.Sum).tolist()

agent, names = sys.argv[1:]
print(ringar.run(meet, hosts=names, options=["--ssh-command", agent, "--link", "tcp"]))
"""

EVERYONE = str([("host0", [2.0, 2.0]), ("host1", [2.0, 2.0])]) + "\n"


def only_by_ipv6(hosts: Hosts) -> list[str]:
    """Take IPv4 away, that of the loopback interface, too; return the addresses of the hosts."""
    for i, host in enumerate(hosts):
        host.run("sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6")
        for name in ("eth0", "lo"):
            host.run("ip", "-4", "address", "flush", "dev", name)
        host.run("ip", "address", "add", f"fd45::{i + 1}/64", "dev", "eth0", "nodad")
    return ["fd45::1", "fd45::2"]


def behind_a_network_of_containers(hosts: Hosts) -> list[str]:
    """Make the first interface of each host one that leads nowhere, with the same address."""
    for i, host in enumerate(hosts):
        ends = ["name", f"second{i}", "type", "veth", "peer", "name", "eth1"]
        hosts.switch("ip", "link", "add", *ends, "netns", str(host.pid))
        hosts.switch("ip", "link", "set", f"second{i}", "master", "switch", "up")
        host.run("ip", "link", "set", "eth1", "up")
        host.run("ip", "address", "add", f"10.213.46.{i + 1}/24", "dev", "eth1")
        host.run("ip", "address", "flush", "dev", "eth0")
        host.run("ip", "address", "add", "172.17.0.1/16", "dev", "eth0")
        host.cut()
    return ["10.213.46.1", "10.213.46.2"]


def call(hosts: Hosts, folder: Path, names: str, alias: str, addresses: list[str]) -> str:
    """Call a function on both hosts, of which ssh knows the second by `alias`; return the output.

    The agent tells commands what sshd tells them.
    """
    agent = folder / "agent"
    variable = f"SSH_CONNECTION='{addresses[0]} 1 {addresses[1]} 22'"
    check = f'while [ "$1" != {alias} ]; do [ $# -gt 0 ] || exit 255; shift; done; shift'
    write(agent, f'{check}\nexec {hosts.agent} host1 "export {variable}; $*"')
    words = [sys.executable, "-c", CALLER, str(agent), names]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    job = hosts[0].run(*words, env=environment, timeout=100, check=False)
    return str(job.stdout) if job.returncode == 0 else str(job.stdout + job.stderr)


def test_hosts_without_ipv4(tmp_path: Path) -> None:
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6")
    with Hosts(2) as hosts:
        environment = only_by_ipv6(hosts)
        names = "[fd45::1]:1,[fd45::2]:1"
        assert call(hosts, tmp_path, names, "fd45::2", environment) == EVERYONE
        job = hosts[0].run(
            *(sys.executable, "-c", "import ringar; print(ringar.run(min, ((1, 2),), np=2))"),
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            timeout=60,
            check=False,
        )
        assert job.stdout == "[1, 1]\n", job.stderr


def test_hosts_that_ssh_alone_knows_beside_a_network_of_containers(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        environment = behind_a_network_of_containers(hosts)
        assert call(hosts, tmp_path, "localhost:1,alias:1", "alias", environment) == EVERYONE
