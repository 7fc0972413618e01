"""Do gradients travel while the backward pass still runs, and what is gained by it?

    python -m benchmarks.training.overlap --output build/overlap
    python -m benchmarks.training.overlap --model alexnet --bind-to none

Trains in three ways in turn: with gradients in buckets, with all gradients in one bucket, which can
leave only when the backward pass has ended, and with no exchange at all. Then records some steps of
the first, on one clock: ringar's timeline, and TensorFlow's profiler on rank 0. Prints how long
each bucket was on its way and how much of that lay beside operations of the backward pass, and
writes OUTPUT.json, which Perfetto (https://ui.perfetto.dev) opens, and OUTPUT.png, one step.

"Beside" is not "for nothing": a collective on one machine is work of a processor. A rank bound to
one core does it in time that it takes from the backward pass, whose operations then last longer;
what overlap can hide there is the waiting for other ranks. What it gains is the difference of the
three step times, which are measured with nothing recorded.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import command, machine, report
from benchmarks.harness.command import parse_size
from benchmarks.harness.jobs import Reports
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.series import slowest
from benchmarks.training.jobs import train_in_turn
from benchmarks.training.models import MODELS
from benchmarks.training.overlap_trace import Span, bytes_text, chrome_trace, rows, transfers
from benchmarks.training.plot import plot_step
from ringar.keras.buckets import DEFAULT_BUCKET_BYTES, DEFAULT_FIRST_BUCKET_BYTES

EVERYTHING = 1 << 50
"""Bytes of a bucket that holds all gradients."""

STEPS = {"mlp": 200, "small_cnn": 20, "alexnet": 2, "resnet50": 2}
"""Steps per round and candidate."""

CANDIDATES = ("in buckets", "in one bucket", "no exchange")


def measure(options: argparse.Namespace, folder: Path) -> Reports:
    """Runs the job, which leaves its records in `folder`, and returns the ranks' reports."""
    first = min(options.bucket, options.first_bucket)
    return train_in_turn(
        options.num_proc, options.bind_to, deadline=600, model=options.model,
        candidates=[[options.bucket, first], [EVERYTHING, EVERYTHING], None],
        rounds=options.rounds, steps=options.steps or STEPS[options.model], record=options.record,
        intra=options.intra, inter=options.inter, folder=str(folder),
    )  # fmt: skip


def step_times(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns seconds per step of each way to train: of the slowest rank, over the rounds."""
    table = []
    for index, candidate in enumerate(CANDIDATES):
        rounds = slowest(r["seconds"][index] for r in reports)
        table.append({"gradients": candidate, "seconds": median(rounds),
                      "min": min(rounds), "max": max(rounds)})  # fmt: skip
    return table


def gain(reports: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Returns seconds per step that buckets win over one bucket: median and quartiles.

    Each round is compared with itself, so that a slow minute of the machine changes both sides.
    """
    pair = [slowest(r["seconds"][i] for r in reports) for i in (0, 1)]
    won = sorted(single - buckets for buckets, single in zip(*pair, strict=True))
    return median(won), won[len(won) // 4], won[-1 - len(won) // 4]


def print_tables(table: list[dict[str, Any]], times: list[dict[str, Any]]) -> None:
    """Prints step times, and a row per bucket."""
    lines = [[r["gradients"], *report.spread(r)] for r in times]
    print(report.table(["gradients travel", "step", "min", "max"], lines))
    total = table[-1]
    print(f"\nrecorded steps, ms: step {total['step']:.2f}, backward pass ends at "
          f"{total['backward_ends']:.2f}, communication {total['ms']:.2f}, "
          f"of it beside backward {total['beside']:.2f} ({total['part']:.0%})")  # fmt: skip
    keys = ["leaves", "queued", "waiting", "reducing", "copying", "ms", "beside"]
    lines = [
        [row["bucket"], bytes_text(row["bytes"]), row["tensors"]]
        + [f"{row[key]:.3f}" for key in keys]
        + [f"{row['part']:.0%}"]
        for row in table[:-1]
    ]
    headers = ["bucket", "size", "tensors", "leaves at", *keys[1:5], "total", "beside backward",
               "part"]  # fmt: skip
    print(report.table(headers, lines) if lines else "no bucket: one rank has nothing to exchange")


def middle_step(steps: list[Span]) -> Span:
    """Returns the step of median length."""
    return sorted(steps, key=lambda step: step[1] - step[0])[len(steps) // 2]


def parser() -> argparse.ArgumentParser:
    cli = command.parser(
        "benchmarks.training.overlap", __doc__, "writes OUTPUT.json and OUTPUT.png"
    )
    cli.add_argument("--model", default="small_cnn", choices=list(MODELS))
    cli.add_argument("-np", "--num-proc", type=int, default=2, help="ranks (default 2)")
    cli.add_argument("--bind-to", default="auto", help="core, none, numa (default: as ringarrun)")
    cli.add_argument("--bucket", type=parse_size, default=DEFAULT_BUCKET_BYTES, help="as in 512K")
    cli.add_argument("--first-bucket", type=parse_size, default=DEFAULT_FIRST_BUCKET_BYTES)
    cli.add_argument("--intra", type=int, default=None, help="intra-op threads of a rank")
    cli.add_argument("--inter", type=int, default=None, help="inter-op threads of a rank")
    cli.add_argument("--rounds", type=int, default=12, help="timed rounds (default 12)")
    cli.add_argument("--steps", type=int, default=None, help="steps per round")
    cli.add_argument("--record", type=int, default=15, help="recorded steps (default 15)")
    return cli


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            reports = measure(options, folder)
        except JobFailedError as error:
            print(f"not measured: {error}")
            return 1
        record = json.loads((folder / "ops.json").read_text())
        timelines = [
            json.loads((folder / f"timeline.rank{rank}").read_text())
            for rank in range(options.num_proc)
        ]
    ops = [(name, begin, end) for name, begin, end in record["ops"]]
    steps = [(begin, end) for begin, end in record["steps"]]
    exchanges = transfers(timelines[0])
    table, times = rows(steps, ops, exchanges), step_times(reports)
    host = machine.describe()
    print(f"# overlap, {options.model} on {options.num_proc} ranks, bind to {options.bind_to}: "
          f"{machine.headline(host)}")  # fmt: skip
    print_tables(table, times)
    won, low, high = gain(reports)
    print(
        f"buckets win {won * 1e3:+.2f} ms a step over one bucket (quartiles {low * 1e3:+.2f} to "
        f"{high * 1e3:+.2f}); clocks agree within {record['clock_error_us']:.0f} us"
    )
    errors = sum(r["wrong"] for r in reports)
    if errors:
        print(f"{errors} weights differ between the ranks")
    if options.output:
        events = chrome_trace(steps, ops, timelines)
        report.write_json(options.output, {"traceEvents": events, "otherData": {
            "machine": host, "rows": table, "steps": times}})  # fmt: skip
        title = (f"One training step, rank 0 of {options.num_proc}, {options.model}, "
                 f"bind to {options.bind_to}")  # fmt: skip
        plot_step(options.output, middle_step(steps), ops, exchanges, title)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
