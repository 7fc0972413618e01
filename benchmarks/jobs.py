"""Starts the ranks of a measurement, with a deadline, and brings back what they wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import environments, peers
from benchmarks.machine import ROOT


class JobFailedError(RuntimeError):
    """A job did not end well; the message is the end of its output."""


def run_command(command: list[str], *, deadline: float, env: dict[str, str] | None = None) -> str:
    """Runs a job in a process group of its own and returns its output.

    Raises:
        JobFailedError: it failed, or outlasted ``deadline`` seconds and was stopped.
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**environment, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=deadline)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        if isinstance(error, subprocess.TimeoutExpired):
            raise JobFailedError(f"no end after {deadline:.0f} s") from None
        raise
    if process.returncode:
        tail = " / ".join(output.strip().splitlines()[-3:])
        raise JobFailedError(f"exit code {process.returncode}: {tail[-300:]}")
    return output


def measure_peer(name: str, ranks: int, options: dict[str, Any], deadline: float) -> list[Any]:
    """Runs benchmarks.worker for a peer and returns the reports of its ranks.

    Raises:
        JobFailedError: the peer cannot be installed, started, or did not end well.
    """
    peer = peers.load(name)
    with tempfile.TemporaryDirectory() as folder:
        program = ["-m", "benchmarks.worker", name, json.dumps({**options, "folder": folder})]
        try:
            environment = environments.ensure(name, peer.REQUIREMENTS)
            command = peer.command(environment, ranks, program)
        except (environments.CannotInstallError, FileNotFoundError, ImportError) as error:
            raise JobFailedError(str(error)) from None
        run_command(command, deadline=deadline)
        reports = [json.loads(p.read_text()) for p in sorted(Path(folder).glob("*.json"))]
    if len(reports) != ranks:
        raise JobFailedError(f"expected {ranks} reports, received {len(reports)}")
    return reports
