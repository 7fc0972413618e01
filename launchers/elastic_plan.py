"""Plan an elastic job: the numbers of ranks, the slots, and where they come from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ringar.job import membership
from ringar.launchers import hosts, plan
from ringar.launchers.cpus import Cpu
from ringar.launchers.discovery import Discovery
from ringar.launchers.elastic import Limits
from ringar.launchers.errors import UsageError
from ringar.launchers.plan import JobPlan
from ringar.launchers.request import Request


def is_wanted(request: Request) -> bool:
    """Return whether the user asks for an elastic job.

    Raises:
        UsageError: an option of elastic jobs is given without `--min-np`.
    """
    if request.min_np is not None:
        return True
    given = {
        "--max-np": request.max_np,
        "--host-discovery-script": request.discovery_script,
        "--reset-limit": request.reset_limit,
        "--elastic-dir": request.elastic_dir,
    }
    if names := [name for name, value in given.items() if value is not None]:
        raise UsageError(
            f"{', '.join(names)}: expected --min-np, the number of ranks with which the job may "
            "go on, received none; for example: ringarrun -np 4 --min-np 2 train.py"
        )
    return False


def make(
    request: Request, environ: Mapping[str, str], cpus: Sequence[Cpu]
) -> tuple[JobPlan, Limits, Discovery | None]:
    """Plan an elastic job on this host.

    Raises:
        UsageError: the request cannot be carried out; the message has the cause and the remedy.
    """
    _check_hosts(request)
    limits = _limits(request)
    watched = request.source if request.hosts and request.source != "-H" else None
    discovery = None
    if request.discovery_script is not None or watched is not None:
        discovery = Discovery(request.discovery_script, Path(watched) if watched else None)
    slots = limits.max_np if discovery is not None else limits.num_proc
    job = plan.make(request, slots, environ, cpus)
    environment = dict(job.environment)
    if request.elastic_dir is not None:
        try:
            os.makedirs(request.elastic_dir, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"--elastic-dir: expected a folder to write in, received "
                f"{str(request.elastic_dir)!r}: {error.strerror}"
            ) from error
        environment[membership.FOLDER_VARIABLE] = str(request.elastic_dir)
    return replace(job, environment=environment), limits, discovery


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


def _check_hosts(request: Request) -> None:
    others = [host.name for host in request.hosts if not hosts.is_this_host(host.name)]
    if others or request.launcher in ("mpirun", "srun"):
        raise UsageError(
            "--min-np: expected a job on this host, whose ranks ringarrun starts itself, received "
            f"{', '.join(others) or '--launcher ' + request.launcher}; leave that out"
        )
