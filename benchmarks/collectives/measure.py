"""Measures a collective with several peers in turn."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.harness import environments
from benchmarks.harness.jobs import Reports, run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.series import Series, slowest_rank

LIMIT = 300.0
"""Seconds for a turn of a peer."""


@dataclass
class Measured:
    """The times of a comparison, and the peers that have none."""

    series: dict[tuple[str, int], Series] = field(default_factory=dict)
    """By peer and size."""
    versions: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why a peer has no times, or fewer than it should have."""


def measure_peer(name: str, ranks: int, options: dict[str, Any], deadline: float) -> Reports:
    """Makes a peer's environment, runs `benchmarks.collectives.worker` there, returns the reports.

    Raises:
        JobFailedError: the peer cannot be installed or started, or its job failed.
    """
    peer = peers.load(name)
    try:
        environment = environments.ensure(Path(name).stem, peer.REQUIREMENTS)
        return run_worker(
            "benchmarks.collectives.worker", {**options, "peer": name}, ranks, deadline=deadline,
            command=peer.command, environment=environment,
        )  # fmt: skip
    except (environments.CannotInstallError, FileNotFoundError, ImportError) as error:
        raise JobFailedError(str(error)) from None


def collect(
    collective: str,
    names: list[str],
    ranks: int,
    sizes: list[int],
    rounds: int,
    budget_bytes: int,
    limit: float = LIMIT,
) -> Measured:
    """Measures all peers in turn, `rounds` times, each for at most `limit` seconds a turn.

    A peer that fails once is not tried again.
    """
    outcome = Measured()
    for name in names:
        if not hasattr(peers.load(name).Peer, collective):
            outcome.reasons[name] = f"it has no {collective}"
    options = {"collective": collective, "sizes": sizes, "budget_bytes": budget_bytes}
    for number in range(rounds):
        for name in names:
            if name in outcome.reasons:
                continue
            print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            try:
                reports = measure_peer(name, ranks, options, deadline=limit)
            except JobFailedError as error:
                outcome.reasons[name] = str(error)
                continue
            outcome.versions[name] = reports[0]["version"]
            for i, size in enumerate(sizes):
                series = outcome.series.setdefault((name, size), Series())
                series.rounds.append(slowest_rank(reports, i))
                series.errors += sum(r["results"][i]["wrong"] for r in reports)
    return outcome
