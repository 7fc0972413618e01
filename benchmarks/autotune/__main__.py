"""Is a training that Autotune has tuned ever slower than with the defaults, and what does it gain?

    python -m benchmarks.autotune --output build/autotune
    python -m benchmarks.autotune --only host

Trains dense layers on two ranks of this host, and on two hosts (tests/hosts) with a link of
100 Mbit/s, until the search has ended. Then both steps are measured in turn in the same job, the
one with the settings that were chosen and the one with the defaults. The weights are compared: with
those of a training without Autotune, which must be the same bits on one host and differ by the
order of sums between hosts; and between the ranks, bit by bit.

Step: of the slowest rank, median of the rounds. Ratio: of each round's two, the median. Exits with
1 if weights differ, or a job failed; a missed target changes nothing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import command, launch, machine, report, results
from benchmarks.harness import targets as bounds
from benchmarks.harness.jobs import Reports, run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.targets import Target
from tests.hosts import JUMBO_MTU, Hosts, unavailable

CASES = {"host": "2 ranks on one host", "hosts": "2 hosts, 100 Mbit/s"}
RATE_MBIT = 100.0
LIMIT = 1200.0
TOLERANCE = 1e-4
MOST_TIMES = 1.02

Row = dict[str, Any]


def run(case: str, job: dict[str, Any]) -> Reports:
    """Runs the job of a case.

    Raises:
        JobFailedError: the job failed.
    """
    worker = "benchmarks.autotune.worker"
    with tempfile.TemporaryDirectory() as folder:
        options = {**job, "settings": str(Path(folder, "settings.json"))}
        if case == "host":
            return run_worker(worker, options, 2, deadline=LIMIT)
        with Hosts(2, rate_mbit=RATE_MBIT, mtu=JUMBO_MTU) as hosts:
            on_hosts = launch.on_hosts(hosts, 1, "tcp")
            return run_worker(worker, options, 2, deadline=LIMIT, command=on_hosts)


def row(case: str, reports: Reports) -> Row:
    """Returns what a job has found."""

    def slowest(name: str) -> list[float]:
        return [max(times) for times in zip(*(r["seconds"][name] for r in reports), strict=True)]

    tuned, defaults = slowest("tuned"), slowest("defaults")
    first = reports[0]
    tolerated = case == "hosts"
    return {
        "case": CASES[case],
        "settings": first["settings"],
        "seconds": median(tuned),
        "min": min(tuned),
        "max": max(tuned),
        "default_seconds": median(defaults),
        "times": median(a / b for a, b in zip(tuned, defaults, strict=True)),
        "other_bits": first["other_bits"],
        "difference": first["difference"],
        # So written, NaN is wrong, too.
        "wrong": sum(one["differ"] for one in reports)
        + sum(not (one["difference"] <= TOLERANCE if tolerated else one["other_bits"] == 0)
              for one in reports)
        + (not first["found"]),
    }  # fmt: skip


def text(rows: list[Row]) -> str:
    """Returns the table."""
    headers = ["", "chosen", "step", "min", "max", "with the defaults", "ratio", "other weights"]
    return report.table(headers, [
        [one["case"], one["settings"], *report.spread(one),
         report.time_text(one["default_seconds"]), f"{one['times']:.3f}",
         f"{one['other_bits']}, by {one['difference']:.1e}"]
        for one in rows
    ])  # fmt: skip


def targets(rows: list[Row]) -> list[Target]:
    """Returns the bounds."""
    what = "step as tuned, over the step with the defaults"
    return [Target(what, MOST_TIMES, "x", [one["times"] for one in rows], at_most=True)]


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("benchmarks.autotune", __doc__)
    add = parser.add_argument
    add("--only", default=",".join(CASES), help="some of %(default)s")
    add("--layers", type=int, default=8, help="(default %(default)s)")
    add("--units", type=int, default=512, help="(default %(default)s)")
    add("--batch", type=int, default=64, help="(default %(default)s)")
    add("--warmup", type=int, default=1, help="samples that do not count (default %(default)s)")
    add("--samples", type=int, default=16, help="settings to try (default %(default)s)")
    add("--steps", type=int, default=6, help="steps of a sample (default %(default)s)")
    add("--rounds", type=int, default=12, help="of the measurement (default %(default)s)")
    add("--calls", type=int, default=6, help="steps of a round (default %(default)s)")
    options = vars(parser.parse_args(arguments))
    output, names = options.pop("output"), options.pop("only").split(",")
    if unknown := sorted(set(names) - set(CASES)):
        parser.error(f"--only: {', '.join(unknown)}: known are {', '.join(CASES)}")
    here, rows, missing = machine.describe(), [], {}
    for case in names:
        print(CASES[case], file=sys.stderr, flush=True)
        try:
            if case == "hosts" and (reason := unavailable()):
                missing[CASES[case]] = reason
            else:
                rows.append(row(case, run(case, options)))
        except JobFailedError as error:
            missing[CASES[case]] = str(error)
    print(f"# Autotune, {machine.headline(here)}\n")
    print(text(rows), end="\n\n")
    print(bounds.table(targets(rows)))
    print(report.missing_lines(missing), end="")
    data = {"tried": {"cases": names}, "missing": missing, "rows": rows}
    results.keep("autotune", here, data, output)
    wrong = sum(one["wrong"] for one in rows)
    if wrong:
        print(f"{wrong} wrong results", file=sys.stderr)
    return 1 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
