"""How fast do the cores of this machine copy, in their own caches and to each other?

    python -m benchmarks.rates

These rates say which part of a collective's time is the machine's. Two processes on two cores copy
a block that fits into the cache of a core: each on its own, then one writes it and the other reads
it, in turn. A virtual machine may say nothing true about its caches: whether two cores share one
shows in these rates only.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.harness import command, jobs, launch, machine, results
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.report import KIB

BLOCK, ROUNDS = 256 * KIB, 2000
LIMIT = 60.0
SHARED = 20e9
"""Bytes per second from which on two cores evidently share a cache, both ways: those of an AMD EPYC
that do copy at 29 and 34e9, others of it and an Intel Xeon's at 8 to 19e9."""


def measure() -> list[dict[str, Any]]:
    """Returns a row per kind of copy: its title and bytes per second.

    Raises:
        JobFailedError: it could not be measured, as on a machine of one core.
    """
    options = {"bytes": BLOCK, "rounds": ROUNDS}
    reports = jobs.run_worker(
        "benchmarks.rates.worker", options, 2, deadline=LIMIT, command=launch.plain
    )
    seconds = {
        "in its own cache": max(r["alone"] for r in reports),
        "to lines that the other core has read": reports[0]["together"],
        "from lines that the other core has written": reports[1]["together"],
    }
    return [{"copy": copy, "rate": BLOCK / s} for copy, s in seconds.items()]


def share_a_cache(rows: list[dict[str, Any]]) -> bool:
    """Returns whether the cores evidently share a cache."""
    _, *each_other = (row["rate"] for row in rows)
    return min(each_other) >= SHARED


def text(rows: list[dict[str, Any]]) -> str:
    """Returns the rates and their meaning in a sentence."""
    rates = ", ".join(f"at {row['rate'] / 1e9:.0f} GB/s {row['copy']}" for row in rows)
    verdict = "share a cache" if share_a_cache(rows) else "share no cache"
    return f"A core copies {rates}: the cores evidently {verdict}."


def main(arguments: list[str] | None = None) -> int:
    options = command.parser("benchmarks.rates", __doc__).parse_args(arguments)
    host = machine.describe()
    try:
        rows = measure()
    except JobFailedError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    print(f"# {machine.headline(host)}\n{text(rows)}")
    results.keep("rates", host, {"tried": {}, "rows": rows, "missing": {}}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
