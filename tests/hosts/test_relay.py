"""A relay drops, delays and changes frames, and takes a link down; TCP carries all bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts import Faults, Hosts

pytestmark = [pytest.mark.job, pytest.mark.deadline(60)]

SEND = """
import socket, sys
server = socket.create_server(("", 5000))
print("listens", flush=True)
connection = server.accept()[0]
connection.sendall(bytes(range(256)) * 2000)
connection.close()
"""
RECEIVE = """
import socket, time
start, received = time.monotonic(), b""
connection = socket.create_connection(("host0", 5000), 20)
while part := connection.recv(1 << 16):
    received += part
assert received == bytes(range(256)) * 2000, len(received)
print(time.monotonic() - start)
"""


def seconds_to_pass(hosts: Hosts) -> float:
    """Return how long half a megabyte takes from host 0 to host 1, which must get it whole."""
    server = hosts[0].popen(sys.executable, "-c", SEND, stdout=subprocess.PIPE)
    with server:
        assert server.stdout is not None
        assert server.stdout.readline() == "listens\n"
        return float(hosts[1].run(sys.executable, "-c", RECEIVE).stdout)


@pytest.mark.parametrize(
    "faults",
    [
        Faults(),
        Faults(seed=1, drop=0.03),
        Faults(seed=2, flip=0.03),
        Faults(seed=3, delay=0.01),
    ],
    ids=["none", "drop", "flip", "delay"],
)
def test_the_bytes_arrive(can_make_hosts: None, faults: Faults) -> None:
    with Hosts(2) as hosts, hosts[1].relayed(faults):
        seconds_to_pass(hosts)


def test_a_link_that_is_down_carries_nothing_until_it_is_up(
    can_make_hosts: None, tmp_path: Path
) -> None:
    down = tmp_path / "down"
    down.touch()
    with Hosts(2) as hosts, hosts[1].relayed(Faults(down_file=str(down), down=1.5)):
        assert seconds_to_pass(hosts) > 1
