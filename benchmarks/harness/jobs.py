"""Runs a worker on every rank of a job and returns the ranks' reports."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import launch, processes

Reports = list[dict[str, Any]]
"""One per rank of a job, in rank order."""
Command = Callable[[Path, int, list[str]], list[str]]
"""Given an environment's folder, the number of ranks and Python's arguments: a command line."""
THIS_ENVIRONMENT = Path()


def run_worker(
    module: str,
    options: dict[str, Any],
    ranks: int,
    *,
    deadline: float,
    command: Command = launch.ringarrun,
    environment: Path = THIS_ENVIRONMENT,
    env: dict[str, str] | None = None,
) -> Reports:
    """Runs `python -m MODULE OPTIONS` on all ranks and returns their reports.

    Args:
        module: the worker, see `benchmarks.harness.worker`.
        options: its options, to which this function adds the folder for the reports. A worker may
            leave other files there if `options` name a folder that the caller has made.
        ranks: how many ranks the job has.
        deadline: seconds after which the job is stopped.
        command: how the ranks are started.
        environment: the folder of the Python environment that the ranks run in.
        env: variables beyond those of this process.

    Raises:
        JobFailedError: the job failed, or not every rank has reported.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.get("folder", scratch)
        program = ["-m", module, json.dumps({**options, "folder": folder})]
        processes.run_command(command(environment, ranks, program), deadline=deadline, env=env)
        paths = [Path(folder, f"{rank}.json") for rank in range(ranks)]
        reports = [json.loads(path.read_text()) for path in paths if path.exists()]
    if len(reports) != ranks:
        raise processes.JobFailedError(f"expected {ranks} reports, received {len(reports)}")
    return reports
