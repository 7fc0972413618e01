"""Runs workers of PyTorch: `hogwild_pytorch` and `local_pytorch`.

They share the environment of `benchmarks.peers.gloo`, which says where its PyTorch comes from.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness import environments, jobs, launch
from benchmarks.harness.processes import JobFailedError
from benchmarks.peers import gloo

TITLE = "PyTorch"


def run_worker(
    module: str,
    options: dict[str, Any],
    ranks: int,
    *,
    deadline: float,
    command: jobs.Command = launch.plain,
) -> jobs.Reports:
    """Runs a worker on all ranks in PyTorch's environment, which is made first if need be.

    Raises:
        JobFailedError: PyTorch cannot be installed, or the job failed.
    """
    try:
        environment = environments.ensure("gloo", gloo.REQUIREMENTS)
    except environments.CannotInstallError as error:
        raise JobFailedError(str(error)) from None
    return jobs.run_worker(
        module, options, ranks, deadline=deadline, command=command, environment=environment
    )
