"""Plan an elastic job: the numbers of ranks, the slots, and where they come from."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ringar.job import membership
from ringar.launchers.elastic.discovery import Discovery
from ringar.launchers.elastic.next_world import Limits
from ringar.launchers.errors import UsageError
from ringar.launchers.plan import hosts, job_plan, scheduler_hosts
from ringar.launchers.plan.cpus import Cpu
from ringar.launchers.plan.job_plan import JobPlan
from ringar.launchers.plan.request import Request
from ringar.launchers.start import hosts_plan, preflight, srun, ssh
from ringar.launchers.start.choose import choose
from ringar.launchers.start.hosts_plan import HostsPlan

_PAUSE = 1.0  # seconds before hosts are asked again


def is_wanted(request: Request) -> bool:
    """Return whether the user asks for an elastic job.

    Raises:
        UsageError: an option of elastic jobs is given without `--min-np`.
    """
    if request.min_np is not None:
        return True
    options = {
        "--max-np": request.max_np,
        "--host-discovery-script": request.discovery_script,
        "--reset-limit": request.reset_limit,
        "--elastic-dir": request.elastic_dir,
    }
    if names := [name for name, value in options.items() if value is not None]:
        raise UsageError(
            f"{', '.join(names)}: expected --min-np, the number of ranks with which the job may "
            "go on, received none; for example: ringarrun -np 4 --min-np 2 train.py"
        )
    return False


def complete(
    request: Request, environ: Mapping[str, str]
) -> tuple[Request, Limits, Discovery | None]:
    """Return the request with the hosts known at the beginning, its limits, and the discovery.

    Raises:
        UsageError: the request cannot be carried out; the message has the cause and the remedy.
    """
    watched = request.source if request.hosts and request.source != "-H" else None
    discovery = None
    if request.discovery_script is not None or watched is not None:
        discovery = Discovery(request.discovery_script, Path(watched) if watched else None)
        if sum(host.slots for host in request.hosts) < (request.min_np or 1):
            source = watched or "--host-discovery-script"
            request = replace(request, hosts=_wait(discovery, request), source=source)
    elif not request.hosts and request.launcher != "local":
        allocation = scheduler_hosts.find(environ)
        if allocation is not None:
            source = f"of the {allocation.scheduler} allocation"
            request = replace(request, hosts=allocation.hosts, source=source)
    if request.elastic_dir is not None:
        _make_folder(request.elastic_dir)
        if not request.dry_run:
            _reserve(request.elastic_dir)
        folder = f"{membership.FOLDER_VARIABLE}={request.elastic_dir}"
        request = replace(request, exports=(*request.exports, folder))
    return request, _limits(request), discovery


def _wait(discovery: Discovery, request: Request) -> tuple[hosts.Host, ...]:
    assert request.min_np is not None
    try:
        return discovery.wait(request.min_np, request.elastic_timeout)
    except UsageError:
        discovery.close()
        raise


def is_on_this_host(
    request: Request, discovery: Discovery | None, environ: Mapping[str, str]
) -> bool:
    """Return whether all ranks run on this host, now and later, so that it needs no guard.

    Args:
        request: the request, complete.
        discovery: tells the hosts, if they may change.
        environ: the launcher's environment.

    Raises:
        UsageError: MPI would have to start them.
    """
    if request.launcher in ("mpirun", "srun") or request.link == "mpi":
        option = "--link mpi" if request.link == "mpi" else f"--launcher {request.launcher}"
        raise UsageError(
            "--min-np: expected a job whose ranks ringarrun starts itself, without MPI, received "
            f"{option}; leave that out"
        )
    is_here = all(hosts.is_this_host(host.name) for host in request.hosts)
    if request.launcher == "ssh" or request.link == "tcp" or not is_here:
        return False
    return discovery is None or request.launcher == "local" or not _has_agent(request, environ)


def _has_agent(request: Request, environ: Mapping[str, str]) -> bool:
    """Return whether this host can reach others that discovery may tell later."""
    allocation = scheduler_hosts.find(environ)
    scheduler = allocation.scheduler if allocation else None
    if scheduler == "SLURM" and srun.is_there(environ):
        return True
    options = (request.ssh_command, request.ssh_port, request.ssh_identity)
    try:
        ssh.agent(*options, environ, scheduler)
    except UsageError:
        if any(options) or environ.get(ssh.VARIABLE):
            raise
        return False
    return True


def on_this_host(
    request: Request,
    limits: Limits,
    discovery: Discovery | None,
    environ: Mapping[str, str],
    cpus: Sequence[Cpu],
) -> JobPlan:
    """Plan a job on this host.

    Args:
        request: the request, complete.
        limits: the numbers of ranks.
        discovery: tells how many slots there are, if that may change.
        environ: the launcher's environment.
        cpus: the CPUs that may be used.

    Raises:
        UsageError: the request cannot be carried out; the message has the cause and the remedy.
    """
    slots = limits.num_proc if discovery is None else limits.max_np
    return job_plan.make(request, slots, environ, cpus)


def on_hosts(
    request: Request, limits: Limits, discovery: Discovery | None, environ: Mapping[str, str]
) -> HostsPlan:
    """Plan a job on several hosts, all slots of which may be used; discovery may tell more later.

    Args:
        request: the request, complete.
        limits: the numbers of ranks.
        discovery: tells the hosts, if they may change; then more of them may come.
        environ: the launcher's environment.

    Raises:
        UsageError: the request cannot be carried out; the message has the cause and the remedy.
    """
    if request.hosts and discovery is None:
        hosts.fill(request.hosts, limits.num_proc, request.source)
    prefix = limits.max_np > 1 if request.prefix is None else request.prefix
    everywhere = replace(request, num_proc=None, launcher="ssh", link="auto", prefix=prefix)
    return hosts_plan.make(everywhere, choose(everywhere, environ), environ)


def on_hosts_that_answer(
    request: Request, limits: Limits, discovery: Discovery | None, environ: Mapping[str, str]
) -> tuple[HostsPlan, Collection[str]]:
    """Plan a job on several hosts, of which enough can take part.

    Args:
        request: the request, complete.
        limits: the numbers of ranks, and how long to wait for hosts that may change.
        discovery: tells the hosts, if they may change.
        environ: the launcher's environment.

    Returns:
        The job on all hosts, and the names of those that cannot take part.

    Raises:
        UsageError: the request cannot be carried out, or too few hosts can take part.
    """
    until = time.monotonic() + limits.timeout
    last_faults: dict[str, str] = {}
    while True:
        job, faults = preflight.examine(on_hosts(request, limits, discovery, environ))
        if sum(host.slots for host in job.start.hosts if host.name not in faults) >= limits.min_np:
            if faults:
                _say(preflight.describe(faults, job, "the job starts without"))
            return job, faults.keys()
        left = until - time.monotonic()
        if discovery is None or left <= 0:
            raise preflight.refusal(faults, job)
        if faults.keys() != last_faults.keys():
            last_faults = faults
            again = f"asking again for up to {limits.timeout:g} s (--elastic-timeout)"
            _say(preflight.describe(faults, job, again))
        request = replace(request, hosts=discovery.wait(limits.min_np, left, _PAUSE))


def _say(text: str) -> None:
    print(f"ringarrun: {text}", file=sys.stderr, flush=True)


def _make_folder(folder: Path) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--elastic-dir: expected a folder to write in, received {str(folder)!r}: "
            f"{error.strerror}"
        ) from error


def _reserve(folder: Path) -> None:
    """Keep other launchers away from the folder until this process ends.

    Two jobs would go on from each other's commits. A file system without locks (NFS, for folders)
    does not tell.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"--elastic-dir: expected a folder of one job, received {str(folder)!r}, where another "
            "job writes its commits; wait for its end, or name another folder"
        ) from None
    except OSError:
        os.close(descriptor)


def _limits(request: Request) -> Limits:
    assert request.min_np is not None
    slots = sum(host.slots for host in request.hosts) or None
    start = request.num_proc or slots or request.min_np
    most = request.max_np or start
    start = min(start, most) if request.num_proc is None else start
    if not request.min_np <= start <= most:
        raise UsageError(
            f"expected --min-np <= -np <= --max-np, received {request.min_np}, {start} and {most}"
        )
    return Limits(start, request.min_np, most, request.reset_limit, request.elastic_timeout)
