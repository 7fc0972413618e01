"""What do more ranks than cores cost?

    python -m benchmarks.training.crowd

Trains the model of examples/digits.py on 2 and 4 ranks of two cores, and on 1 and 2 ranks of one
core. Jobs of some seconds take turns, for a machine changes its speed from minute to minute. Each
job trains plainly, too, in processes that do not communicate: what more processes than cores lose
then, to caches and the scheduler, no exchange can give back. Examples/s are those of the crowd over
those of a rank per core, in the same round: their median, least and greatest.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.harness import command, launch, machine, report, results
from benchmarks.harness.jobs import run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.series import slowest
from benchmarks.training.models import MODELS
from benchmarks.training.steps import COUNTS

MODEL, TURNS, LIMIT = "digits", 3, 120.0
CROWDS = ((2, 4), (1, 2))
"""Cores, and ranks that share them."""

Row = dict[str, Any]


def speeds(cores: int, ranks: int) -> dict[str, float]:
    """Returns examples/s of a job on so many cores, by name of its turns: "plain" and "ringar".

    Raises:
        JobFailedError: there are fewer cores, the job failed, or its weights are wrong.
    """
    numbers = sorted(os.sched_getaffinity(0))[:cores]
    if len(numbers) < cores:
        raise JobFailedError(f"expected {cores} cores, received {len(numbers)}")

    def bound_to_cores(environment: Path, n: int, program: list[str]) -> list[str]:
        chosen = ",".join(map(str, numbers))
        return ["taskset", "--cpu-list", chosen, *launch.ringarrun(environment, n, program)]

    options = {"model": MODEL, "way": "fit", "turns": TURNS, "steps": COUNTS[MODEL]}
    reports = run_worker(
        "benchmarks.training.step_worker", options, ranks, deadline=LIMIT, command=bound_to_cores
    )
    if any(r["wrong"] for r in reports):
        raise JobFailedError(f"{ranks} ranks on {cores} cores: their weights differ")
    examples = ranks * MODELS[MODEL][1]
    return {
        name: examples / median(slowest([fmean(turn) for turn in r[name]] for r in reports))
        for name in ("plain", "ringar")
    }


def measure(rounds: int) -> list[Row]:
    """Returns a row for each crowd.

    `of_fewer` are examples/s over those of a rank per core, and `of_fewer_plain` those without an
    exchange; each with the least and the greatest of the rounds.

    Raises:
        JobFailedError: see `speeds`.
    """
    figures: dict[tuple[int, int], dict[str, list[float]]] = {
        crowd: {"plain": [], "ringar": []} for crowd in CROWDS
    }
    for number in range(rounds):
        for cores, ranks in CROWDS:
            print(f"{ranks} ranks on {cores} cores, round {number + 1}", file=sys.stderr)
            # In both orders: a machine that slows down slows the second job.
            pair = (cores, ranks)[:: -1 if number % 2 else 1]
            by_ranks = {n: speeds(cores, n) for n in pair}
            for name, ratios in figures[cores, ranks].items():
                ratios.append(by_ranks[ranks][name] / by_ranks[cores][name])
    rows = []
    for (cores, ranks), by_name in figures.items():
        row: Row = {"cores": cores, "ranks": ranks}
        for name, key in (("ringar", "of_fewer"), ("plain", "of_fewer_plain")):
            ratios = by_name[name]
            row |= {key: median(ratios), f"{key}_min": min(ratios), f"{key}_max": max(ratios)}
        rows.append(row)
    return rows


def table_text(rows: list[Row]) -> str:
    """Returns a line for each crowd."""

    def part(row: Row, name: str) -> str:
        return f"{row[name]:.0%} ({row[f'{name}_min']:.0%} to {row[f'{name}_max']:.0%})"

    lines = [
        [
            row["ranks"],
            row["cores"],
            row["cores"],
            part(row, "of_fewer"),
            part(row, "of_fewer_plain"),
        ]
        for row in rows
    ]
    headers = ["ranks", "on cores", "examples/s, of those of ranks", "as a job", "without exchange"]
    return report.table(headers, lines)


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("benchmarks.training.crowd", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of all jobs (default %(default)s)")
    options = parser.parse_args(arguments)
    host = machine.describe()
    try:
        rows = measure(options.rounds)
    except JobFailedError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    print(f"# more ranks than cores: {machine.headline(host)}")
    print(table_text(rows))
    results.keep("crowd", host, {"tried": {}, "rows": rows, "missing": {}}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
