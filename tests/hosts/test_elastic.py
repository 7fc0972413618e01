"""Elastic jobs over hosts: ranks and hosts that are lost, and others that join."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.elastic.test_elastic import SCRIPTS
from tests.hosts import SUBNET, Hosts
from tests.plugin.jobs import PYTHONPATH

pytestmark = [
    pytest.mark.job,
    pytest.mark.usefixtures("can_make_hosts"),
    pytest.mark.deadline(240),
]


def run(
    hosts: Hosts,
    *words: str,
    options: tuple[str, ...],
    steps: Sequence[tuple[str, Callable[[], object]]] = (),
) -> tuple[int, str]:
    """Run an elastic job; do something to it whenever its output has the next text.

    Args:
        hosts: its hosts, of which the first one has the launcher.
        words: the program.
        options: those of the launcher.
        steps: texts, each of which must come after the one before it, and what to do then.

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
        give_up, position, left = time.monotonic() + 200, 0, list(steps)
        while job.poll() is None and time.monotonic() < give_up:
            time.sleep(0.05)
            text = os.pread(output.fileno(), 1 << 20, 0).decode()
            if left and (place := text.find(left[0][0], position)) >= 0:
                position = place + len(left[0][0])
                left.pop(0)[1]()
        code = job.poll()
        output.seek(0)
        text = output.read()
    assert code is not None, text
    assert not left, text
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


def test_hosts_are_absent_cut_off_and_lost_and_others_come(tmp_path: Path) -> None:
    """One host is not there, the link of another one is cut, a third one is killed."""
    listed = tmp_path / "hosts"

    def name(*lines: str) -> None:
        """Name the hosts: at once, for the launcher reads the file while the job runs."""
        new = tmp_path / "new"
        new.write_text("".join(f"{line}\n" for line in lines))
        new.replace(listed)

    name("host0 slots=2", "host9 slots=1", "host1 slots=1")
    with Hosts(3) as hosts:

        def replace() -> None:
            name("host0 slots=2", "host2 slots=1")

        def lose() -> None:
            hosts[1].restore()
            hosts[2].lose()
            name("host0 slots=2", "host1 slots=1")

        steps = [
            ("[0] 3 ranks on 2 hosts", hosts[1].cut),
            ("host1 cannot reach 10.213.45.1:", replace),
            ("[0] 3 ranks on 2 hosts", lose),
        ]
        program = [sys.executable, str(SCRIPTS / "wait_for_others.py"), "5"]
        options = ("--hostfile", str(listed), "-np", "3", "--start-timeout", "8")
        code, text = run(hosts, *program, options=options, steps=steps)
        left = [host.processes() for host in hosts]
    for notice in (
        r"ringarrun: 1 of 3 hosts cannot take part; the job starts without\n  host9: cannot be",
        r"ringarrun: rank 2 \(slot \d, .* on host1\) is ended; 2 ranks of its world are left",
        r"\(slot \d, a process on host1\) was not started: host1 cannot reach 10\.213\.45\.1:",
        r"rank 2 \(slot \d, .* on host2\) is lost: the way to its host ended with",
    ):
        assert len(re.findall(notice, text)) in range(1, 6), text
    assert re.findall(r"^\[0\] (\d ranks on \d hosts?)", text, re.MULTILINE) == [
        "3 ranks on 2 hosts",
        "2 ranks on 1 host",
    ] * 2 + ["3 ranks on 2 hosts"], text
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
