"""How long do a pull and a push take, beside a copy of the same bytes?

    python -m benchmarks.asynchronous.transfers --output build/transfers
    python -m benchmarks.asynchronous.transfers --hosts --rate 1000

Rank 1 reads and writes the part of rank 0 in a window (`get`, `put`, `accumulate`), and pulls and
pushes the same bytes with a parameter server; rank 0 does nothing else. With `--hosts` each rank
has a host of its own (tests/hosts), whose link has a rate. What is read is compared with what was
written. Exits with 1 if it differs or the job failed; a missed target changes nothing.
"""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

from benchmarks.harness import command, launch, machine, report, results
from benchmarks.harness.command import parse_size
from benchmarks.harness.jobs import run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.report import KIB, MIB
from benchmarks.harness.targets import Target, table
from tests.hosts import Hosts, unavailable

WORKER = "benchmarks.asynchronous.transfers_worker"


def measure(job: dict[str, Any], hosts: bool, rate: float) -> dict[str, Any]:
    """Runs the job; returns the seconds of each turn, by size and way.

    Raises:
        JobFailedError: the job failed.
    """
    if not hosts:
        return run_worker(WORKER, job, 2, deadline=300.0)[1]
    with Hosts(2, rate_mbit=rate) as places:
        on_hosts = launch.on_hosts(places, 1, "tcp", ())
        return run_worker(WORKER, job, 2, deadline=300.0, command=on_hosts)[1]


def targets(outcome: dict[str, Any], hosts: bool, rate: float) -> list[Target]:
    """Returns the targets of windows."""
    times = {
        (int(size), way): median(seconds)
        for size, ways in outcome["seconds"].items()
        for way, seconds in ways.items()
    }
    large, small = 64 * MIB, 4 * KIB
    if hosts:
        bound = large * 8 / (rate * 1e6)
        parts = [100 * bound / times.get((large, way), float("nan")) for way in ("get", "put")]
        return [Target("64 MiB between hosts, get and put, of the link", 90, "%", parts)]
    nan = float("nan")
    copies = times.get((large, "copy"), nan)
    return [
        Target(
            "64 MiB, get and put, of a memcpy",
            1.5,
            "x",
            [times.get((large, way), nan) / copies for way in ("get", "put")],
            at_most=True,
        ),
        Target(
            "4 KiB, get and put",
            3,
            " us",
            [1e6 * times.get((small, way), nan) for way in ("get", "put")],
            at_most=True,
        ),
    ]


def text(outcome: dict[str, Any], hosts: bool, rate: float) -> str:
    """Returns the targets, then the figures."""
    rows = [
        [report.size_text(int(size)), way, *map(report.time_text, (median(s), min(s), max(s)))]
        for size, ways in outcome["seconds"].items()
        for way, s in ways.items()
    ]
    figures = report.table(["bytes", "what", "median", "min", "max"], rows)
    return f"{table(targets(outcome, hosts, rate))}\n\n{figures}"


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("benchmarks.asynchronous.transfers", __doc__)
    add = parser.add_argument
    add("--sizes", default="4K,1M,64M", help="bytes (default %(default)s)")
    add("--rounds", type=int, default=5, help="turns of each way (default %(default)s)")
    add("--hosts", action="store_true", help="a host for each rank")
    add("--rate", type=float, default=1000, help="Mbit/s of a host (default %(default)s)")
    options = parser.parse_args(arguments)
    if options.hosts and (reason := unavailable()):
        print(f"cannot measure: {reason}", file=sys.stderr)
        return 2
    host = machine.describe()
    job = {"sizes": [parse_size(s) for s in options.sizes.split(",")], "rounds": options.rounds}
    try:
        outcome = measure(job, options.hosts, options.rate)
    except JobFailedError as error:
        print(error, file=sys.stderr)
        return 1
    where = f"two hosts of {options.rate:g} Mbit/s" if options.hosts else "one host"
    print(f"# Transfers, {where}: {machine.headline(host)}")
    print(text(outcome, options.hosts, options.rate))
    scope = {"sizes": job["sizes"], "rounds": [options.rounds], "where": [where]}
    name = "transfers-between-hosts" if options.hosts else "transfers"
    results.keep(name, host, {"tried": scope, "missing": {}, **outcome}, options.output)
    return 1 if outcome["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
