"""Measures a peer: makes its environment, starts its ranks, and brings back what they wrote."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.harness import environments
from benchmarks.harness.processes import JobFailedError, run_command


def measure_peer(name: str, ranks: int, options: dict[str, Any], deadline: float) -> list[Any]:
    """Runs benchmarks.collectives.worker for a peer and returns the reports of its ranks.

    Raises:
        JobFailedError: the peer cannot be installed, started, or did not end well.
    """
    peer = peers.load(name)
    with tempfile.TemporaryDirectory() as folder:
        program = [
            "-m",
            "benchmarks.collectives.worker",
            name,
            json.dumps({**options, "folder": folder}),
        ]
        try:
            environment = environments.ensure(Path(name).stem, peer.REQUIREMENTS)
            command = peer.command(environment, ranks, program)
        except (environments.CannotInstallError, FileNotFoundError, ImportError) as error:
            raise JobFailedError(str(error)) from None
        run_command(command, deadline=deadline)
        reports = [json.loads(p.read_text()) for p in sorted(Path(folder).glob("*.json"))]
    if len(reports) != ranks:
        raise JobFailedError(f"expected {ranks} reports, received {len(reports)}")
    return reports
