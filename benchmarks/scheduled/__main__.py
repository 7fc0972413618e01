"""How many rounds does the dynamic scheduler save? A Lasso with 10,000 correlated columns.

    python -m benchmarks.scheduled --output build/scheduled
    python -m benchmarks.scheduled --rows 200 --columns 400 --limit 2000

Neighboring columns have a correlation of 0.9. Each scheduler takes rounds of up to 32 variables
until the objective is within a share of the optimum, which a run to a small duality gap finds
first. Those that check dependencies must never raise the objective from one evaluation to the next.
Prints the rows beside the target. Exits with 1 if the objective rose, or the job failed; a missed
target changes nothing.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

from benchmarks.harness import command, machine, report, results
from benchmarks.harness import targets as bounds
from benchmarks.harness.jobs import run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.targets import Target

LIMIT = 600.0
CHECKED = ("dynamic", "round robin", "random")
UNCHECKED = ("dynamic, unchecked", "round robin, unchecked")

Row = dict[str, Any]


def rows(schedulers: dict[str, Any]) -> list[Row]:
    """Returns a row for each scheduler, from a rank's report."""
    return [
        {
            "scheduler": name,
            "rounds": figures["rounds"] if math.isfinite(figures["rounds"]) else None,
            "seconds": figures["seconds"] if math.isfinite(figures["rounds"]) else None,
            "done": figures["curve"][-1][0],
            "rises": figures["rises"],
            "wrong": int(name in CHECKED and figures["rises"] > 0),
            "curve": [(done, objective) for done, _, objective in figures["curve"]],
        }
        for name, figures in schedulers.items()
    ]


def table_text(table: list[Row]) -> str:
    """Returns the table of all schedulers."""
    lines = []
    for row in table:
        reached = row["rounds"] is not None
        lines.append([
            row["scheduler"],
            f"{row['rounds']:,}" if reached else f"not in {row['done']:,}",
            report.time_text(row["seconds"]) if reached else "",
            report.time_text(row["seconds"] / row["rounds"]) if reached else "",
            row["rises"],
        ])  # fmt: skip
    headers = ["scheduler", "rounds", "time", "time per round", "evaluations that rose"]
    return report.table(headers, lines)


def targets(table: list[Row]) -> list[Target]:
    """Returns the target, without a measurement if a scheduler did not reach the objective."""
    by_name = {row["scheduler"]: row["rounds"] for row in table}
    dynamic, other = by_name.get("dynamic"), by_name.get("round robin")
    ratio = other / dynamic if dynamic and other else math.nan
    return [Target("rounds to the same objective, round robin over dynamic", 3, "x", [ratio])]


def parser() -> argparse.ArgumentParser:
    cli = command.parser("benchmarks.scheduled", __doc__)
    add = cli.add_argument
    add("--rows", type=int, default=400, help="(default %(default)s)")
    add("--columns", type=int, default=10_000, help="(default %(default)s)")
    add("--ranks", type=int, default=2, help="(default %(default)s)")
    add("--cut", choices=["rows", "columns"], default="rows", help="(default %(default)s)")
    add("--share", type=float, default=1e-3, help="of the optimum (default %(default)s)")
    add("--limit", type=int, default=6_000, help="the most rounds (default %(default)s)")
    return cli


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    job = {key: getattr(options, key) for key in ("rows", "columns", "cut", "share", "limit")}
    names = [*CHECKED, *UNCHECKED]
    table: list[Row] = []
    reasons: dict[str, str] = {}
    try:
        reports = run_worker(
            "benchmarks.scheduled.worker", {**job, "names": names}, options.ranks, deadline=LIMIT
        )
        table = rows(reports[0]["schedulers"])
    except JobFailedError as error:
        reasons["Lasso"] = str(error)
    host = machine.describe()
    title = f"Lasso, {options.rows} x {options.columns:,}, cut by {options.cut}"
    print(f"# {title}, {options.ranks} ranks, {machine.headline(host)}\n")
    print(table_text(table) + "\n")
    print(bounds.table(targets(table)))
    print(report.missing_lines(reasons), end="")
    scope = {"columns": [options.columns], "names": names}
    data = {"tried": scope, "missing": reasons, "job": job, "ranks": options.ranks}
    short = [{key: value for key, value in row.items() if key != "curve"} for row in table]
    results.record("scheduled", host, {**data, "rows": short})
    if options.output:
        report.write_json(options.output, {"machine": host, **data, "rows": table})
    errors = sum(row["wrong"] for row in table)
    if errors:
        print(f"{errors} schedulers that check dependencies raised the objective", file=sys.stderr)
    return 1 if errors or reasons else 0


if __name__ == "__main__":
    sys.exit(main())
