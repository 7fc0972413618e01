"""A rank that ends with an error: the job ends soon, with its exit code, and the verdict names it.

MPI_Finalize would wait for the others. They are in a collective, or come to one some seconds later.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import SUBNET, Hosts, run_on_hosts
from tests.hosts.scenarios import SCRIPTS
from tests.plugin import JobResult, fast_if, run_job

pytestmark = [pytest.mark.job, pytest.mark.usefixtures("has_open_mpi"), pytest.mark.deadline(120)]

MPI = "--mca btl tcp,self,sm --mca pml ob1 --mca mpi_yield_when_idle 1"
LEFT = 'PeerLostError: rank 0 | allreduce "without it"'
ENDS = [
    (how, code, where)
    for how, code in (("exception", 1), ("os._exit", 3))
    for where in ("inside", "outside")
]


def ringarrun(hosts: Hosts, *args: str) -> JobResult:
    """Runs ends.py on a rank of each host."""
    names = ",".join(f"{host.name}:1" for host in hosts)
    command = [sys.executable, "-m", "ringar.launchers", "-H", names]
    command += ["--ssh-command", str(hosts.agent), "--network-interface", SUBNET]
    command += [f"--mpi-args={MPI}", sys.executable, str(SCRIPTS / "ends.py"), *args]
    env = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    result = run_job(None, hosts[0].command(*command), deadline=60, env=env)
    assert not result.leftovers, result
    assert not any(host.processes() for host in hosts), result
    return result


def mpirun(*args: str) -> JobResult:
    """Runs ends.py on two ranks of this machine, without ringarrun."""
    result = run_on_hosts(None, 2, [sys.executable, str(SCRIPTS / "ends.py"), *args], deadline=60)
    assert not result.leftovers, result
    return result


def ends(fast: tuple[str, int, str]) -> Any:
    """How rank 1 ends, with which code, and where the others are then."""
    variants = [fast_if(end == fast, *end) for end in ENDS]
    return pytest.mark.parametrize(("how", "code", "where"), variants)


@ends(fast=("exception", 1, "inside"))
def test_ringarrun_ends_with_its_code(two: Hosts, how: str, code: int, where: str) -> None:
    result = ringarrun(two, how, where)
    assert result.code == code, result
    assert result.stderr.rstrip().endswith(f"rank 1 of 2 on host1 failed with exit code {code}")
    assert (how == "exception") == ("ValueError: an error in the program" in result.stderr)
    if where == "inside":
        assert LEFT in result.stderr, "the grace is for that"


@pytest.mark.slow
@ends(fast=("os._exit", 3, "inside"))
def test_mpirun_ends_with_its_code(how: str, code: int, where: str) -> None:
    result = mpirun(how, where)
    assert result.code == code, result
    assert f"@1,1]\n   Exit code:    {code}\n" in result.stderr, "the process of rank 1"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["inside", "outside"])
def test_a_rank_that_calls_sys_exit_is_named_by_the_others(two: Hosts, where: str) -> None:
    """Its code is known to nobody before MPI_Finalize, where it waits until the others give up."""
    for result in (ringarrun(two, "sys.exit", where), mpirun("sys.exit", where)):
        assert result.code not in (0, None), result
        assert LEFT in result.stderr, result
        assert "rank 1 has left: it called ringar.shutdown() or its program ended" in result.stderr


def test_handlers_run_and_files_are_written(tmp_path: Path) -> None:
    result = mpirun("exception", "inside", str(tmp_path / "file"))
    assert "a handler from before the import\n" in result.stdout, result
    assert (tmp_path / "file").read_text() == "not flushed"
