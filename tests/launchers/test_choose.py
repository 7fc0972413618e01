from __future__ import annotations

import socket
from typing import Any

import pytest

from ringar.launchers.errors import UsageError
from ringar.launchers.plan import hosts
from ringar.launchers.plan.hosts import Host
from ringar.launchers.plan.request import Request
from ringar.launchers.start import choose as choose_module
from ringar.launchers.start import mpi, srun, ssh
from ringar.launchers.start.choose import Choice, choose

LOCAL_HOST, REMOTE_HOST = Host("localhost", 2), Host("elsewhere", 2)
SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
NODES = (Host("n1", 2), Host("n2", 2))
LSF = {"LSB_MCPU_HOSTS": "n1 2 n2 2"}
LSF_HERE = {"LSB_MCPU_HOSTS": f"{socket.gethostname()} 4"}


@pytest.fixture(autouse=True)
def has_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(srun, "is_there", lambda environ: True)


def choice(environ: dict[str, str] | None = None, **options: object) -> Choice:
    fields: dict[str, object] = {"num_proc": None, "command": ("true",), "source": "-H", **options}
    return choose(Request(**fields), environ or {})  # type: ignore[arg-type]


def test_automatic() -> None:
    assert choice(num_proc=3) == Choice("local", 3)
    assert choice(hosts=(LOCAL_HOST,)) == Choice("local", 2, (LOCAL_HOST,))
    assert choice(hosts=(LOCAL_HOST, REMOTE_HOST)) == Choice("ssh", 4, (LOCAL_HOST, REMOTE_HOST))
    assert choice(hosts=(REMOTE_HOST,), num_proc=1) == Choice("ssh", 1, (Host("elsewhere", 1),))


def test_mpi_where_it_is_asked_for_or_better(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choice(hosts=(LOCAL_HOST, REMOTE_HOST), link="mpi") == Choice(
        "mpirun", 4, (LOCAL_HOST, REMOTE_HOST)
    )
    assert choice(hosts=(REMOTE_HOST,), mpi_args=("-v",)).launcher == "mpirun"
    monkeypatch.setattr(mpi, "has_fast_network", lambda: True)
    assert choice(hosts=(REMOTE_HOST,)).launcher == "mpirun"
    assert choice(hosts=(REMOTE_HOST,), link="tcp").launcher == "ssh"
    assert choice(SLURM, link="tcp") == Choice("ssh", 4, NODES, "SLURM")
    assert choice(SLURM, launcher="srun", link="tcp") == Choice("ssh", 4, NODES, "SLURM")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"launcher": "mpirun", "link": "tcp"}, "--link tcp: --launcher mpirun starts .* is mpi;"),
        ({"launcher": "ssh", "link": "mpi"}, "--link mpi: --launcher ssh starts .* is tcp;"),
        ({"launcher": "local", "link": "tcp"}, "--link tcp: ranks of one host need no link;"),
        ({"launcher": "ssh", "mpi_args": ("-v",)}, "--mpi-args: .* choose --link mpi"),
    ],
)
def test_launcher_and_link_must_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choice(num_proc=2, **options)


def test_allocations() -> None:
    assert choice(SLURM) == Choice("srun", 4, NODES, "SLURM", "mpirun")
    assert choice(SLURM, num_proc=2) == Choice("srun", 2, NODES[:1], "SLURM", "mpirun")
    assert choice(LSF) == Choice("ssh", 4, NODES, "LSF")
    allocation = (Host(socket.gethostname(), 4),)
    assert choice(LSF_HERE) == Choice("local", 4, allocation, "LSF")


def test_a_container_in_an_allocation_may_lack_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks start here as far as they have room, and else through ssh."""
    monkeypatch.setattr(srun, "is_there", lambda environ: False)
    monkeypatch.setattr(choose_module, "is_this_host", hosts.is_this_host.__wrapped__)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert choice(SLURM, num_proc=2) == Choice("local", 2, NODES[:1], "SLURM")
    assert choice(SLURM) == Choice("ssh", 4, NODES, "SLURM")
    with pytest.raises(UsageError, match="install ssh, .*; make srun visible in the container"):
        ssh.agent("", None, None, {"PATH": "/nowhere"}, "SLURM")


def test_the_user_has_the_last_word() -> None:
    assert choice(SLURM, launcher="mpirun") == Choice("mpirun", 4, NODES, "SLURM")
    assert choice(SLURM, launcher="local", num_proc=2) == Choice("local", 2)
    assert choice(SLURM, hosts=(REMOTE_HOST,)) == Choice("ssh", 2, (REMOTE_HOST,), "SLURM")
    assert choice(launcher="srun", num_proc=4) == Choice("srun", 4)
    assert choice(launcher="ssh", num_proc=4) == Choice("ssh", 4, (Host("localhost", 4),))
    assert choice(launcher="mpirun", num_proc=4) == Choice("mpirun", 4, (Host("localhost", 4),))


@pytest.mark.parametrize("launcher", ["auto", "local", "mpirun", "srun"])
def test_something_must_say_how_many(launcher: str) -> None:
    with pytest.raises(UsageError, match="expected -np N, the number of ranks to start"):
        choice(launcher=launcher)


def test_too_many_ranks() -> None:
    with pytest.raises(UsageError, match=r"at most 4 ranks.*2 hosts \(-H\), received 5"):
        choice(hosts=(LOCAL_HOST, REMOTE_HOST), num_proc=5)
    with pytest.raises(UsageError, match=r"at most 4 .*\(of the SLURM allocation\), received 5"):
        choice(SLURM, num_proc=5)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ssh_port": 22}, "-p"),
        ({"ssh_identity": "key"}, "-i"),
        ({"ssh_command": "rsh"}, "--ssh-command"),
        ({"ssh_port": 22, "ssh_identity": "key"}, "-p, -i"),
    ],
)
def test_srun_takes_no_options_of_ssh(options: dict[str, Any], named: str) -> None:
    message = f"^{named}: expected a job whose hosts are reached through ssh .*, but srun reaches"
    with pytest.raises(UsageError, match=f"{message}.*out, or choose --launcher mpirun$"):
        choice(SLURM, **options)
    with pytest.raises(UsageError, match=message):
        choice(launcher="srun", num_proc=2, **options)
    assert choice(SLURM, launcher="mpirun", **options).launcher == "mpirun"


def test_local_takes_no_other_hosts_and_no_arguments_for_mpi() -> None:
    with pytest.raises(UsageError, match="expected hosts that are this one, received elsewhere"):
        choice(hosts=(LOCAL_HOST, REMOTE_HOST), launcher="local")
    with pytest.raises(UsageError, match="--mpi-args: expected a job of mpirun or srun"):
        choice(num_proc=2, launcher="local", mpi_args=("-v",))
