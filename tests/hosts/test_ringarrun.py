"""ringarrun on several hosts: a job that ends well, a rank that dies, a host that disappears.

The hosts' agent stands in the place of ssh.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

import pytest

from tests.hosts import SUBNET, Hosts
from tests.hosts.scenarios import SCRIPTS
from tests.plugin.jobs import PYTHONPATH, command_line

pytestmark = [
    pytest.mark.job,
    pytest.mark.usefixtures("can_make_hosts", "has_open_mpi"),
    pytest.mark.deadline(150),
]

MPI = "--mca btl tcp,self,sm --mca pml ob1 --mca mpi_yield_when_idle 1"
LIMIT = 90.0


@dataclass(frozen=True)
class Ending:
    """How ringarrun ended, how many processes were left on each host then, and what ranks."""

    code: int
    output: str
    seconds: float
    left: list[int]
    ranks: list[str]


def wait_until_ready(job: subprocess.Popen[str], output: IO[str]) -> None:
    """Returns when both ranks run, or the job has ended."""
    give_up = time.monotonic() + LIMIT
    while job.poll() is None and time.monotonic() < give_up:
        if os.pread(output.fileno(), 1 << 20, 0).count(b"ready: rank") == 2:
            return
        time.sleep(0.02)


def ranks_of(hosts: Hosts) -> list[str]:
    """The ranks that run, with their guards and janitors, but without the daemons of mpirun."""
    lines = [command_line(pid) for pid in hosts.processes()]
    return [line for line in lines if "loop.py" in line or "janitor.py" in line]


links = pytest.mark.parametrize("link", ["mpi", "tcp"])


def run(
    action: str,
    link: str,
    meanwhile: Callable[[Hosts], object] | None = None,
    deadline: float = 4,
) -> Ending:
    """Runs two ranks on two hosts; ``meanwhile``: what happens as soon as both are ready."""
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["RINGAR_PLACE_PREFIX"] = "HOROVOD_"  # as horovodrun sets it
    with Hosts(2) as hosts:
        names = ",".join(f"{host.name}:1" for host in hosts)
        command = [sys.executable, "-m", "ringar.launchers", "-H", names]
        command += ["--deadline", str(deadline)]
        command += ["--ssh-command", str(hosts.agent), "--network-interface", SUBNET]
        command += ["--link", link, *([f"--mpi-args={MPI}"] if link == "mpi" else [])]
        command += [sys.executable, str(SCRIPTS / "loop.py"), action]
        # A file: what runs on a host that was cut off would keep a pipe open.
        with tempfile.TemporaryFile("w+") as output:
            job = hosts[0].popen(
                *command, stdout=output, stderr=subprocess.STDOUT, text=True,
                stdin=subprocess.DEVNULL, env=environment,
            )  # fmt: skip
            try:
                wait_until_ready(job, output)
                start = time.monotonic()
                if meanwhile:
                    meanwhile(hosts)
                job.wait(LIMIT)
            finally:
                job.kill()
            output.seek(0)
            text = output.read()
        seconds = time.monotonic() - start
        give_up = time.monotonic() + 5
        while hosts.processes() and time.monotonic() < give_up:
            time.sleep(0.05)
        left = [len(host.processes()) for host in hosts]
        return Ending(job.returncode, text, seconds, left, ranks_of(hosts))


@links
def test_a_job_ends_well(link: str) -> None:
    ending = run("end", link)
    assert ending.code == 0, ending
    assert "ready: rank 1 of 2, host 1" in ending.output
    assert "1 2 host1" in ending.output
    assert ending.left == [0, 0], ending


@links
def test_a_rank_dies(link: str) -> None:
    """Its exit code is the job's, and the other rank says what it waited for."""
    ending = run("die", link)
    assert ending.code == 137, ending
    assert "PeerLostError: rank 0 | allreduce" in ending.output
    assert ending.seconds < 30
    assert ending.left == [0, 0], ending


@links
def test_a_host_dies(link: str) -> None:
    """With the daemon of mpirun, which then says that all is well, or with the guard."""
    ending = run("loop", link, lambda hosts: hosts[1].kill())
    assert ending.code not in (0, None), ending
    assert ending.seconds < 60
    assert ending.left == [0, 0], ending


@links
@pytest.mark.slow
def test_a_link_is_cut(link: str) -> None:
    """Nobody can end what runs on the host cut off: its ranks notice, by TCP before a deadline."""
    deadline = 4 if link == "mpi" else 300
    ending = run("loop", link, lambda hosts: hosts[1].cut(), deadline)
    assert ending.code not in (0, None), ending
    assert "Error: rank 0 | allreduce" in ending.output
    assert ending.seconds < 60
    assert ending.left[0] == 0, ending
    assert ending.ranks == [], ending


CALLER = """
import socket, sys
import ringar

names, agent, mpi, subnet = sys.argv[1:]
options = ["--ssh-command", agent, "--network-interface", subnet, f"--mpi-args={mpi}"]
said = [1, 2]

def where(fail):
    if fail:
        import threading
        threading.Event().wait(60) if socket.gethostname() == first else said.index(3)
    return socket.gethostname(), said

first = socket.gethostname()
print("results:", ringar.run(where, (False,), hosts=names, options=options))
try:
    ringar.run(where, (True,), hosts=names, options=options)
except ValueError as error:
    print("error:", str(error.__cause__).splitlines()[0], error)
"""


@pytest.mark.slow
def test_a_function_of_a_script() -> None:
    """The hosts have no address in common but that of the caller, and names only for ssh."""
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    with Hosts(2) as hosts:
        names = ",".join(f"{host.name}:1" for host in hosts)
        words = [sys.executable, "-c", CALLER, names, str(hosts.agent), MPI, SUBNET]
        job = hosts[0].popen(
            *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        out, err = job.communicate(timeout=LIMIT)
        everyone = [(host.name, [1, 2]) for host in hosts]
        assert f"results: {everyone}\n" in out, out + err
        assert "error: rank 1 of 2 failed: 3 is not in list\n" in out, out + err
        give_up = time.monotonic() + 10
        while hosts.processes() and time.monotonic() < give_up:
            time.sleep(0.1)
        assert not hosts.processes()
