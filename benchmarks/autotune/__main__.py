"""Is training tuned by Autotune ever slower than with the defaults, or with the best settings?

    python -m benchmarks.autotune --output build/autotune
    python -m benchmarks.autotune --only host
    python -m benchmarks.autotune --only hosts --rate 100 --layers 3

Trains dense layers on two ranks of this host, and on two hosts (tests/hosts) behind a link, until
the search has ended. Then, in the same job, each setting of the full grid is measured once. The
three fastest are measured again in turn with what was chosen and the defaults: the tuned step over
the fastest of them says what the search has missed.

The weights are compared: after the first 60 steps with those of a training without Autotune, which
must be the same bits on one host and differ by the order of sums between hosts; and between the
ranks, bit by bit.

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

CASES = {"host": "2 ranks on one host", "hosts": "2 hosts"}
RATE_MBIT = 500.0
"""Of the link. With 8.4 MB of gradients and less than a fifth of it, a step is all link."""
LIMIT = 600.0
TOLERANCE = 1e-4
MOST_TIMES = 1.02

Row = dict[str, Any]


def title_of(case: str, rate: float) -> str:
    """Returns a case in words."""
    return CASES[case] + (f", {rate:g} Mbit/s" if case == "hosts" else "")


def run(case: str, job: dict[str, Any], rate: float) -> Reports:
    """Runs the job of a case.

    Raises:
        JobFailedError: the job failed.
    """
    worker = "benchmarks.autotune.worker"
    with tempfile.TemporaryDirectory() as folder:
        options = {**job, "settings": str(Path(folder, "settings.json"))}
        if case == "host":
            return run_worker(worker, options, 2, deadline=LIMIT)
        with Hosts(2, rate_mbit=rate, mtu=JUMBO_MTU) as hosts:
            on_hosts = launch.on_hosts(hosts, 1, "tcp")
            return run_worker(worker, options, 2, deadline=LIMIT, command=on_hosts)


def row(case: str, title: str, reports: Reports) -> Row:
    """Returns what a job has found."""
    first = reports[0]  # all ranks report the seconds of the slowest one
    tuned, defaults = first["seconds"]["tuned"], first["seconds"]["defaults"]

    def times(baseline: list[float]) -> float:
        return median(a / b for a, b in zip(tuned, baseline, strict=True))

    fastest: dict[str, list[float]] = first["seconds"]["fastest"]
    best = max(fastest, key=lambda settings: times(fastest[settings]))
    tolerated = case == "hosts"
    return {
        "case": title,
        "settings": first["settings"],
        "seconds": median(tuned),
        "min": min(tuned),
        "max": max(tuned),
        "default_seconds": median(defaults),
        "times": times(defaults),
        "best": best,
        "best_seconds": median(fastest[best]),
        "times_of_best": times(fastest[best]),
        "grid": first["grid"],
        "other_bits": first["other_bits"],
        "difference": first["difference"],
        # So written, NaN is wrong, too.
        "wrong": sum(r["differ"] for r in reports)
        + sum(not (r["difference"] <= TOLERANCE if tolerated else r["other_bits"] == 0)
              for r in reports)
        + (not first["found"]),
    }  # fmt: skip


def text(rows: list[Row]) -> str:
    """Returns the tables."""
    headers = ["", "chosen", "step", "min", "max", "with the defaults", "ratio", "other weights"]
    chosen = report.table(headers, [
        [entry["case"], entry["settings"], *report.spread(entry),
         report.time_text(entry["default_seconds"]), f"{entry['times']:.3f}",
         f"{entry['other_bits']}, by {entry['difference']:.1e}"]
        for entry in rows
    ])  # fmt: skip
    headers = ["", "settings in the grid", "fastest", "its step", "tuned step over it"]
    grid = report.table(headers, [
        [entry["case"], len(entry["grid"]), entry["best"], report.time_text(entry["best_seconds"]),
         f"{entry['times_of_best']:.3f}"]
        for entry in rows
    ])  # fmt: skip
    return f"{chosen}\n\n{grid}"


def targets(rows: list[Row]) -> list[Target]:
    """Returns the bounds."""
    return [
        Target(f"step as tuned, over {subject}", MOST_TIMES, "x", [entry[key] for entry in rows],
               at_most=True)
        for subject, key in (("the step with the defaults", "times"),
                             ("the fastest of the full grid", "times_of_best"))
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("benchmarks.autotune", __doc__)
    add = parser.add_argument
    add("--only", default=",".join(CASES), help="some of %(default)s")
    add("--rate", type=float, default=RATE_MBIT, help="Mbit/s between hosts (default %(default)g)")
    add("--layers", type=int, default=8, help="(default %(default)s)")
    add("--units", type=int, default=512, help="(default %(default)s)")
    add("--batch", type=int, default=64, help="(default %(default)s)")
    add("--warmup", type=int, default=1, help="samples that do not count (default %(default)s)")
    add("--samples", type=int, default=16, help="settings to try (default %(default)s)")
    add("--steps", type=int, default=6, help="steps of a sample (default %(default)s)")
    add("--rounds", type=int, default=8, help="of the measurement (default %(default)s)")
    add("--calls", type=int, default=4, help="steps of a round (default %(default)s)")
    options = vars(parser.parse_args(arguments))
    output, names = options.pop("output"), options.pop("only").split(",")
    rate = options.pop("rate")
    if unknown_names := sorted(set(names) - set(CASES)):
        parser.error(f"--only: {', '.join(unknown_names)}: known are {', '.join(CASES)}")
    host, rows, reasons = machine.describe(), [], {}
    for case in names:
        title = title_of(case, rate)
        print(title, file=sys.stderr, flush=True)
        try:
            if case == "hosts" and (reason := unavailable()):
                reasons[title] = reason
            else:
                rows.append(row(case, title, run(case, options, rate)))
        except JobFailedError as error:
            reasons[title] = str(error)
    print(f"# Autotune, {machine.headline(host)}\n")
    print(text(rows), end="\n\n")
    print(bounds.table(targets(rows)))
    print(report.missing_lines(reasons), end="")
    data = {"tried": {"cases": names}, "missing": reasons, "rows": rows}
    results.keep("autotune", host, data, output)
    errors = sum(entry["wrong"] for entry in rows)
    if errors:
        print(f"{errors} wrong results", file=sys.stderr)
    return 1 if errors or reasons else 0


if __name__ == "__main__":
    sys.exit(main())
