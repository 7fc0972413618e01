"""Elastic jobs over hosts: ranks and hosts that are lost, and others that join."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.elastic.test_elastic import SCRIPTS
from tests.hosts import SUBNET, Hosts
from tests.plugin.jobs import PYTHONPATH

pytestmark = [
    pytest.mark.job,
    pytest.mark.usefixtures("can_make_hosts"),
    pytest.mark.deadline(180),
]


def run(
    hosts: Hosts,
    *words: str,
    options: tuple[str, ...],
    until: str = "",
    then: Callable[[], object] = lambda: None,
) -> tuple[int, str]:
    """Run an elastic job; once a line of its output has `until`, do something to it.

    Returns:
        Its exit code and its output.
    """
    command = [sys.executable, "-m", "ringar.launchers", "--min-np", "2", "--verbose", *options]
    command += ["--ssh-command", str(hosts.agent), "--network-interface", SUBNET]
    environment = {
        "PYTHONPATH": PYTHONPATH,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "RINGAR_GRACE_SCALE": "0.2",
    }
    # A file: what runs on a lost host would keep a pipe open.
    with tempfile.TemporaryFile("w+") as output:
        job = hosts[0].popen(
            *command, *words, stdout=output, stderr=subprocess.STDOUT, text=True,
            stdin=subprocess.DEVNULL, env={**os.environ, **environment},
        )  # fmt: skip
        give_up = time.monotonic() + 120
        has_done = not until
        while job.poll() is None and time.monotonic() < give_up:
            time.sleep(0.05)
            if not has_done and until in os.pread(output.fileno(), 1 << 20, 0).decode():
                has_done = True
                then()
        code = job.poll()
        output.seek(0)
        text = output.read()
    assert code is not None, text
    assert has_done, text
    return code, text


@pytest.mark.slow
def test_ranks_on_two_hosts_die_in_turn_and_are_replaced() -> None:
    """Killed, an exception, SIGTERM, a crash of rank 0; see tests/elastic/scripts/loop.py."""
    with Hosts(2) as hosts:
        program = [sys.executable, str(SCRIPTS / "loop.py")]
        code, text = run(hosts, *program, options=("-H", "host0:2,host1:2"))
        left = [host.processes() for host in hosts], [host.shared_memory() for host in hosts]
    sizes = [4, 3, 4, 3, 4, 3, 4, 3, 4]
    ends = re.findall(r"^\[\d\] (\d 4 \[.*)", text, re.MULTILINE)
    assert sorted(ends) == [f"{rank} 4 {sizes} 0" for rank in range(4)], text
    for end in (
        r"rank 2 \(slot 2, process \d+ on host1\) was killed by signal 9 \(SIGKILL\)",
        r"rank 1 \(slot 1, process \d+ on host0\) failed with exit code 1; 3 ranks",
        r"\(slot 3, process \d+ on host1\) has left; 3 ranks",
        r"rank 0 \(slot 0, process \d+ on host0\) was killed by signal 11 \(SIGSEGV\)",
    ):
        assert re.search(f"^ringarrun: .*{end}", text, re.MULTILINE), text
    assert code == 0
    assert left == ([[], []], [set(), set()]), text


def test_a_host_is_lost_and_another_one_comes(tmp_path: Path) -> None:
    """Host 1 is killed with all on it; the hostfile names host 2 in its place."""
    listed = tmp_path / "hosts"
    listed.write_text("host0 slots=2\nhost1 slots=1\n")
    with Hosts(3) as hosts:

        def lose() -> None:
            hosts[1].kill()
            listed.write_text("host0 slots=2\nhost2 slots=1\n")

        program = [sys.executable, str(SCRIPTS / "wait_for_others.py")]
        options = ("--hostfile", str(listed), "-np", "3")
        code, text = run(hosts, *program, options=options, until="3 ranks on 2 hosts", then=lose)
        left = [host.processes() for host in hosts]
    assert re.search(
        r"rank 2 \(slot 2, .* on host1\) is lost: the way to its host ended with", text
    ), text
    assert re.findall(r"^\[0\] (\d ranks on \d hosts?)", text, re.MULTILINE) == [
        "3 ranks on 2 hosts",
        "2 ranks on 1 host",
        "3 ranks on 2 hosts",
    ], text
    assert code == 0, text
    assert left == [[], [], []]


def test_what_cannot_start_on_a_host_ends_the_job(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import socket, sys; sys.exit(7 if socket.gethostname() == 'host1' else 0)")
    with Hosts(2) as hosts:
        code, text = run(hosts, sys.executable, str(program), options=("-H", "host0:1,host1:1"))
    last = text.splitlines()[-1]
    assert code == 7, text
    assert re.search(r"process \d+ on host1\) failed with exit code 7; the others", last), text
