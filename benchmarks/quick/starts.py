"""Starts jobs whose ranks add two NumPy arrays, on this host and on hosts of tests/hosts."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import jobs, launch, report, results

RANKS = {1: 5, 2: 5, 4: 5, 64: 1}
"""Numbers of ranks on this host, and how many jobs are started with each."""
HOSTS, RANKS_PER_HOST, RATE_MBIT = 8, 8, 10_000.0
LIMIT = 300.0

Row = dict[str, Any]


def row(title: str, runs: int, ranks: int, command: jobs.Command) -> Row:
    """Starts `runs` jobs, and returns what they took and what their ranks had."""
    until_first, until_end, reports = [], [], []
    for _ in range(runs):
        begin = time.perf_counter()
        reports = jobs.run_worker(
            "benchmarks.quick.start_worker", {}, ranks, deadline=LIMIT, command=command,
            environment=Path(sys.prefix),
        )  # fmt: skip
        until_end.append(time.perf_counter() - begin)
        until_first.append(max(r["moment"] for r in reports) - begin)
    return {
        "title": title,
        "until_first": median(until_first),
        "until_end": median(until_end),
        "private_bytes": median(r["private_bytes"] for r in reports),
        **{name: sorted({r[name] for r in reports}) for name in ("sockets", "threads")},
    }


def title_here(ranks: int) -> str:
    """Returns the title of the row of so many ranks of this host."""
    return f"{ranks} on this host"


def measure() -> results.Run:
    """Returns a row per job; without root and iproute2 there are none of other hosts."""
    rows = [row(title_here(n), runs, n, launch.ringarrun) for n, runs in RANKS.items()]
    try:
        from tests.hosts import Hosts, unavailable
    except ImportError as error:
        reason: str | None = str(error)
    else:
        reason = unavailable()
    if not reason:
        with Hosts(HOSTS, rate_mbit=RATE_MBIT) as hosts:
            command = launch.on_hosts(hosts, RANKS_PER_HOST, "tcp")
            title = f"{RANKS_PER_HOST} on each of {HOSTS} hosts"
            rows.append(row(title, 1, HOSTS * RANKS_PER_HOST, command))
    reasons = {"ranks of other hosts": reason} if reason else {}
    return {"tried": {}, "rows": rows, "missing": reasons}


def table_text(rows: list[Row]) -> str:
    """Returns a line per job."""

    def span(counts: list[int]) -> str:
        return f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])

    lines = [
        [row["title"], *(report.time_text(row[name]) for name in ("until_first", "until_end")),
         f"{row['private_bytes'] / report.MIB:.0f} MiB", span(row["sockets"]), span(row["threads"])]
        for row in rows
    ]  # fmt: skip
    headers = ["ranks", "until the first collective", "until the end", "memory of a rank",
               "its sockets", "its threads"]  # fmt: skip
    return report.table(headers, lines)
