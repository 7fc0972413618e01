"""A job on a system without ranks: the program alone, as it would run without `ringarrun`."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping

from ringar.job.one_rank.absence import absence_of_system
from ringar.launchers.errors import UsageError
from ringar.launchers.plan import job_plan
from ringar.launchers.plan.request import Request


def run(request: Request, environ: Mapping[str, str]) -> int:
    """Run the program, and return its exit code.

    Raises:
        UsageError: the request needs more than one rank, or names nothing that can be run.
    """
    option = f"-np {request.num_proc}" if request.num_proc else ""
    if request.hosts:
        option = f"hosts ({request.source})"
    if request.min_np is not None:
        option = f"--min-np {request.min_np}"
    if option not in ("", "-np 1"):
        raise UsageError(
            f"expected one rank (-np 1), received {option}: {absence_of_system().text()}"
        )
    variables = {**environ, **job_plan.variables(request, environ)}
    command = job_plan.program(request, variables).command
    if request.dry_run:
        print(shlex.join(command))
        return 0
    return subprocess.run(command, env=variables, check=False).returncode
