"""What does sharding save, and what does it cost?

    python -m benchmarks.sharded --output build/sharded
    python -m benchmarks.sharded --only memory --ranks 2 --allocator onednn
    python -m benchmarks.sharded --only time --models transformer

Memory: a stack of dense layers (400 MB of weights by default) with Adam, in jobs of their own
without shards, by each stage, and with slots on disk: the resident memory of weights and slots,
against 12 bytes per parameter without shards, 4 + 8/N on N ranks, 12/N with sharded weights, and 4
with slots on disk; and the greatest resident memory of a step beyond what the process had without
the model. TensorFlow's allocator for oneDNN keeps the pages of what was freed, such as whole
weights that were cut, for later tensors; so by default the allocator is the system's.

Time: a step of AlexNet and of a Transformer of 12 layers of width 512 on two ranks, without shards
and by each stage, in turn in the same job; and what a rank must send in a step (`ringar.stats`).

Exits with 1 if losses differ from those without shards, or a job failed; a missed target changes
nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from statistics import median
from typing import Any

from benchmarks.harness import command, machine, report, results
from benchmarks.harness import targets as bounds
from benchmarks.harness.jobs import Reports, run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.series import Series, slowest
from benchmarks.harness.targets import Target
from benchmarks.sharded.worker import MODELS, OFFLOADED, WAYS

LIMIT = 600.0
TOLERANCE = 1e-4
"""Relative, of losses."""
MB = 1e6
MOST_OFF = 0.05
SYSTEM_ALLOCATOR = {"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"}
MOST_TIME = {"optimizer": 1.05, "gradients": 1.05, "weights": 1.25}
MOST_BYTES = {"optimizer": 1.001, "gradients": 1.001, "weights": 1.501}

STAGES = [way for way in WAYS if way is not None]

Row = dict[str, Any]


def memory_row(shard: str | None, ranks: int, reports: Reports) -> Row:
    """Returns the greatest figures of a job's ranks, and the bytes that the formula gives."""
    weights = reports[0]["weights"]
    slots = 0 if shard == OFFLOADED else 2 * weights / (1 if shard is None else ranks)
    return {
        "shard": shard or "none",
        "ranks": ranks,
        "weights": weights,
        "held": max(r["held"] for r in reports),
        "expected": weights / (ranks if shard == "weights" else 1) + slots,
        "peak": max(r["peak"] for r in reports),
        "losses": [r["losses"] for r in reports],
    }


def time_rows(model: str, ranks: int, reports: Reports) -> list[Row]:
    """Returns a row for each way to train."""

    def of_rounds(name: str) -> list[list[float]]:
        rounds = zip(*(r["seconds"][name] for r in reports), strict=True)
        return [slowest(of_ranks) for of_ranks in rounds]

    plain, rows = Series(of_rounds("none")), []
    for name in reports[0]["seconds"]:
        series = Series(of_rounds(name))
        ratios = [a / b for a, b in zip(series.medians, plain.medians, strict=True)]
        rows.append({
            "model": model, "ranks": ranks, "shard": name, **series.summary(),
            "times": median(ratios),
            "bytes": max(r["bytes"][name] for r in reports),
            "losses": [r["losses"][name] for r in reports],
        })  # fmt: skip
    return rows


def wrong_losses(rows: list[Row]) -> int:
    """Counts losses that are not those without shards, which the first row has."""
    count = 0
    for row in rows[1:]:
        for losses, reference in zip(row["losses"], rows[0]["losses"], strict=True):
            # So written, NaN is wrong, too.
            count += sum(not abs(a - b) <= TOLERANCE * abs(b)
                         for a, b in zip(losses, reference, strict=True))  # fmt: skip
    return count


def memory_text(rows: list[Row]) -> str:
    """Returns the table of memory."""
    headers = ["shard", "ranks", "weights", "held", "formula", "held / formula", "peak of a step"]
    return report.table(headers, [
        [row["shard"], row["ranks"], f"{row['weights'] / MB:.0f} MB", f"{row['held'] / MB:.0f} MB",
         f"{row['expected'] / MB:.0f} MB", f"{row['held'] / row['expected']:.3f}",
         f"{row['peak'] / MB:.0f} MB"]
        for row in rows
    ])  # fmt: skip


def time_text(rows: list[Row]) -> str:
    """Returns the table of times."""
    headers = ["model", "ranks", "shard", "step", "min", "max", "over none", "sent by a rank"]
    return report.table(headers, [
        [row["model"], row["ranks"], row["shard"], *report.spread(row), f"{row['times']:.3f}",
         f"{row['bytes'] / MB:.1f} MB"]
        for row in rows
    ])  # fmt: skip


def targets(memory: list[Row], times: list[Row]) -> list[Target]:
    """Returns the targets of the measured rows."""
    cut = [row for row in memory if row["shard"] != "none"]
    goals = []
    if cut:
        off = [abs(row["held"] / row["expected"] - 1) for row in cut]
        goals.append(
            Target("weights and slots: off the formula by", MOST_OFF, "", off, at_most=True)
        )
    for model in dict.fromkeys(row["model"] for row in times):
        by_shard = {row["shard"]: row for row in times if row["model"] == model}
        for way in MOST_TIME:
            row = by_shard[way]
            goals += [
                Target(f"{model}, {way}: step over no shards", MOST_TIME[way], "x",
                       [row["times"]], at_most=True),
                Target(f"{model}, {way}: bytes over an allreduce", MOST_BYTES[way], "x",
                       [row["bytes"] / by_shard["none"]["bytes"]], at_most=True),
            ]  # fmt: skip
    return goals


def measure_memory(options: argparse.Namespace, ranks: int, reasons: dict[str, str]) -> list[Row]:
    rows: list[Row] = []
    for shard in (*WAYS, OFFLOADED):
        title = f"memory, shard={shard}, {ranks} ranks"
        print(title, file=sys.stderr, flush=True)
        job = {"task": "memory", "shard": shard, "ranks": ranks, "threads": 1,
               "layers": options.layers, "width": options.width, "examples": 16}  # fmt: skip
        try:
            reports = run_worker(
                "benchmarks.sharded.worker", job, ranks, deadline=LIMIT,
                env=SYSTEM_ALLOCATOR if options.allocator == "system" else None,
            )  # fmt: skip
        except JobFailedError as error:
            reasons[title] = str(error)
        else:
            rows.append(memory_row(shard, ranks, reports))
    return rows


def measure_times(options: argparse.Namespace, model: str, reasons: dict[str, str]) -> list[Row]:
    print(f"time, {model}", file=sys.stderr, flush=True)
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    job = {"task": "time", "model": model, "ranks": 2, "threads": threads,
           "steps": options.steps, "rounds": options.rounds}  # fmt: skip
    try:
        reports = run_worker("benchmarks.sharded.worker", job, 2, deadline=LIMIT)
    except JobFailedError as error:
        reasons[f"time, {model}"] = str(error)
        return []
    return time_rows(model, 2, reports)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    cli = command.parser(
        "benchmarks.sharded", __doc__, "writes OUTPUT.json, for benchmarks.sharded.plot"
    )
    add = cli.add_argument
    add("--only", choices=("memory", "time"), help="(default: both)")
    add("--ranks", default="2,4", help="of the memory (default %(default)s)")
    add("--layers", type=int, default=24, help="of the memory (default %(default)s)")
    add("--width", type=int, default=2048, help="of the memory (default %(default)s)")
    add("--allocator", choices=("system", "onednn"), default="system",
        help="of TensorFlow, while memory is measured (default %(default)s)")  # fmt: skip
    add("--models", default="alexnet,transformer", help="(default %(default)s)")
    add("--steps", type=int, default=4, help="timed steps of a turn (default %(default)s)")
    add("--rounds", type=int, default=5, help="turns of each way (default %(default)s)")
    options = cli.parse_args(arguments)
    options.ranks = [int(text) for text in options.ranks.split(",")]
    options.models = options.models.split(",")
    if unknown_names := sorted(set(options.models) - set(MODELS)):
        cli.error(f"--models: {', '.join(unknown_names)}: known are {', '.join(MODELS)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options, reasons = parse(arguments), dict[str, str]()
    memory: list[Row] = []
    times: list[Row] = []
    errors = 0
    for ranks in options.ranks if options.only != "time" else ():
        rows = measure_memory(options, ranks, reasons)
        errors += wrong_losses(rows)
        memory += rows
    for model in options.models if options.only != "memory" else ():
        rows = measure_times(options, model, reasons)
        errors += wrong_losses(rows)
        times += rows
    host = machine.describe()
    print(f"# Sharded training with Adam, {machine.headline(host)}\n")
    for text, rows in ((memory_text, memory), (time_text, times)):
        if rows:
            print(text(rows) + "\n")
    print(bounds.table(targets(memory, times)))
    print(report.missing_lines(reasons), end="")
    data = {
        "tried": {"ranks": options.ranks, "models": options.models},
        "missing": reasons,
        "rows": [*memory, *times],
    }
    results.keep("sharded", host, data, options.output)
    if errors:
        print(f"{errors} losses are not those without shards", file=sys.stderr)
    return 1 if errors or reasons else 0


if __name__ == "__main__":
    sys.exit(main())
