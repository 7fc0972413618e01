"""Starts jobs whose ranks add two NumPy arrays, on this host and on hosts of tests/hosts."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import jobs, launch, report

RANKS = {1: 5, 2: 5, 4: 5, 64: 1}
"""Numbers of ranks on this host, and how many jobs are started with each."""
HOSTS, RANKS_PER_HOST, RATE_MBIT = 8, 8, 10_000.0
LIMIT = 300.0

Row = list[Any]


def row(title: str, runs: int, ranks: int, command: jobs.Command) -> Row:
    """Starts `runs` jobs, and returns the cells of the table."""
    until_first, until_end, reports = [], [], []
    for _ in range(runs):
        begin = time.perf_counter()
        reports = jobs.run_worker(
            "benchmarks.quick.start_worker", {}, ranks, deadline=LIMIT, command=command,
            environment=Path(sys.prefix),
        )  # fmt: skip
        until_end.append(time.perf_counter() - begin)
        until_first.append(max(r["moment"] for r in reports) - begin)
    times = [report.time_text(median(values)) for values in (until_first, until_end)]
    memory = [r["private_bytes"] / (1 << 20) for r in reports]
    sockets, threads = ([r[name] for r in reports] for name in ("sockets", "threads"))
    counts = [f"{min(c)} to {max(c)}" if min(c) < max(c) else min(c) for c in (sockets, threads)]
    return [title, *times, f"{median(memory):.0f} MiB", *counts]


def table_text() -> str:
    """Returns the table; without root and iproute2 it has no other hosts."""
    rows = [row(f"{n} on this host", runs, n, launch.ringarrun) for n, runs in RANKS.items()]
    try:
        from tests.hosts import Hosts, unavailable
    except ImportError as error:
        reason: str | None = str(error)
    else:
        reason = unavailable()
    note = ""
    if reason:
        note = f"without other hosts: {reason}\n"
    else:
        with Hosts(HOSTS, rate_mbit=RATE_MBIT) as hosts:
            command = launch.on_hosts(hosts, RANKS_PER_HOST, "tcp")
            title = f"{RANKS_PER_HOST} on each of {HOSTS} hosts"
            rows.append(row(title, 1, HOSTS * RANKS_PER_HOST, command))
    headers = ["ranks", "until the first collective", "until the end", "memory of a rank",
               "its sockets", "its threads"]  # fmt: skip
    return report.table(headers, rows) + note
