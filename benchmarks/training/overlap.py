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
import re
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import launch, machine, processes, report
from benchmarks.harness.command import parse_size
from benchmarks.training.models import MODELS
from benchmarks.training.overlap_trace import (
    PHASES,
    Op,
    Span,
    Transfer,
    beside,
    chrome_trace,
    phase_of,
    rows,
    transfers,
    union,
)
from ringar.buckets import DEFAULT_BUCKET_BYTES, DEFAULT_FIRST_BUCKET_BYTES

EVERYTHING = 1 << 50
"""Bytes of a bucket that holds all gradients."""

STEPS = {"mlp": 200, "small_cnn": 20, "alexnet": 2, "resnet50": 2}
"""Steps per round and candidate."""

CANDIDATES = ("in buckets", "in one bucket", "no exchange")

KINDS = ("queued", "waiting", "reducing", "copying")

COLORS = {
    "forward": "#8fa3b8", "backward": "#51606e", "optimizer": "#b39ac6", "queued": "#bdbdbd",
    "waiting": "#f2b248", "reducing": "#2474b5", "copying": "#58a868", "running": "#bcd6ec",
}  # fmt: skip


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Runs the job, which leaves its records in ``folder``, and returns the ranks' reports."""
    first = min(options.bucket, options.first_bucket)
    candidates = [[options.bucket, first], [EVERYTHING, EVERYTHING], None]
    job = {"model": options.model, "candidates": candidates, "rounds": options.rounds,
           "steps": options.steps or STEPS[options.model], "record": options.record,
           "intra": options.intra, "inter": options.inter, "folder": str(folder)}  # fmt: skip
    program = ["-m", "benchmarks.training.bucket_worker", json.dumps(job)]
    command = launch.ringarrun(Path(), options.num_proc, program, bind_to=options.bind_to)
    processes.run_command(command, deadline=600)
    return [json.loads((folder / f"{r}.json").read_text()) for r in range(options.num_proc)]


def step_times(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Seconds per step of each way to train: of the slowest rank, over the rounds."""
    table = []
    for index, candidate in enumerate(CANDIDATES):
        rounds = [max(times) for times in zip(*(r["seconds"][index] for r in reports), strict=True)]
        table.append({"gradients": candidate, "seconds": median(rounds),
                      "min": min(rounds), "max": max(rounds)})  # fmt: skip
    return table


def gain(reports: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Seconds per step that buckets win over one bucket: median over the rounds, and quartiles.

    Each round is compared with itself, so that a slow minute of the machine changes both sides.
    """
    slowest = [
        [max(times) for times in zip(*(r["seconds"][i] for r in reports), strict=True)]
        for i in (0, 1)
    ]
    won = sorted(one - buckets for buckets, one in zip(*slowest, strict=True))
    return median(won), won[len(won) // 4], won[-1 - len(won) // 4]


def print_tables(table: list[dict[str, Any]], times: list[dict[str, Any]]) -> None:
    """Step times, and a row per bucket."""
    lines = [[r["gradients"]] + [report.time_text(r[key]) for key in ("seconds", "min", "max")]
             for r in times]  # fmt: skip
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
    """The step of median length."""
    return sorted(steps, key=lambda step: step[1] - step[0])[len(steps) // 2]


def plot(path: str, step: Span, ops: list[Op], found: list[Transfer], title: str) -> None:
    """Draws one step to ``path``.png: a row per phase, then one per bucket."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    inside = [one for one in found if step[0] <= one.begin < step[1]]
    mine = {
        phase: [op[1:] for op in ops if phase_of(op[0]) == phase and step[0] <= op[1] < step[1]]
        for phase in PHASES
    }
    labels = [*PHASES, *(re.sub(r"bucket_(\d+):(.*)", r"bucket \1  (\2)", b.name) for b in inside)]
    figure, axes = plt.subplots(figsize=(10, 1.5 + 0.36 * len(labels)))

    def bars(row: int, spans: list[Span], color: str) -> None:
        axes.broken_barh([((b - step[0]) / 1e3, (e - b) / 1e3) for b, e in spans],
                         (row - 0.36, 0.72), facecolors=COLORS[color], zorder=3)  # fmt: skip

    for row, phase in enumerate(PHASES):
        bars(row, mine[phase], phase)
    for begin, end in union(mine["backward"]):
        axes.axvspan((begin - step[0]) / 1e3, (end - step[0]) / 1e3, color="#eef0f2", lw=0)
    for row, one in enumerate(inside, len(PHASES)):
        bars(row, [(one.begin, one.end)], "running")
        for kind in KINDS:
            bars(row, one.stretches.get(kind, []), kind)
        _caption(axes, row, one, step, mine["backward"])
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, (step[1] - step[0]) / 1e3)
    axes.set_xlabel("ms since the step's begin; shaded: an operation of the backward pass runs")
    axes.set_title(title, fontsize=10, loc="left", pad=24)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLORS[kind]) for kind in (*KINDS, "running")]
    names = [*KINDS, "running (details beyond the first 256)"]
    axes.legend(handles, names, ncols=5, frameon=False, fontsize=8, loc="lower left",
                bbox_to_anchor=(-0.01, 0.99), borderaxespad=0)  # fmt: skip
    figure.tight_layout()
    target = Path(path).with_suffix(".png")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=130)
    plt.close(figure)


def _caption(axes: Any, row: int, one: Transfer, step: Span, backward: list[Span]) -> None:
    """Size, time and part beside the backward pass, on the side of the bar that has the room."""
    length = one.end - one.begin
    text = (f"{bytes_text(one.bytes)}, {report.time_text(length / 1e6)}, "
            f"{beside((one.begin, one.end), backward) / length:.0%} beside backward")  # fmt: skip
    late = one.end - step[0] > 0.6 * (step[1] - step[0])
    at = (one.submitted if late else one.end) - step[0]
    axes.annotate(text, (at / 1e3, row), xytext=(-6 if late else 6, 0), fontsize=8, va="center",
                  textcoords="offset points", ha="right" if late else "left", zorder=4)  # fmt: skip


def bytes_text(size: int) -> str:
    """Three digits, in kB or MB."""
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB"


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.training.overlap",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--model", default="small_cnn", choices=list(MODELS))
    found.add_argument("-np", "--num-proc", type=int, default=2, help="ranks (default 2)")
    found.add_argument("--bind-to", default="auto", help="core, none, numa (default: as ringarrun)")
    found.add_argument("--bucket", type=parse_size, default=DEFAULT_BUCKET_BYTES, help="as in 512K")
    found.add_argument("--first-bucket", type=parse_size, default=DEFAULT_FIRST_BUCKET_BYTES)
    found.add_argument("--intra", type=int, default=None, help="intra-op threads of a rank")
    found.add_argument("--inter", type=int, default=None, help="inter-op threads of a rank")
    found.add_argument("--rounds", type=int, default=12, help="timed rounds (default 12)")
    found.add_argument("--steps", type=int, default=None, help="steps per round")
    found.add_argument("--record", type=int, default=15, help="recorded steps (default 15)")
    found.add_argument("--output", default=None, help="writes OUTPUT.json and OUTPUT.png")
    return found


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            reports = measure(options, folder)
        except processes.JobFailedError as error:
            print(f"not measured: {error}")
            return 1
        record = json.loads((folder / "ops.json").read_text())
        timelines = [
            json.loads((folder / f"timeline.rank{rank}").read_text())
            for rank in range(options.num_proc)
        ]
    ops = [(name, begin, end) for name, begin, end in record["ops"]]
    steps = [(begin, end) for begin, end in record["steps"]]
    found = transfers(timelines[0])
    table, times = rows(steps, ops, found), step_times(reports)
    here = machine.describe()
    print(f"# overlap, {options.model} on {options.num_proc} ranks, bind to {options.bind_to}: "
          f"{machine.headline(here)}")  # fmt: skip
    print_tables(table, times)
    won, low, high = gain(reports)
    print(
        f"buckets win {won * 1e3:+.2f} ms a step over one bucket (quartiles {low * 1e3:+.2f} to "
        f"{high * 1e3:+.2f}); clocks agree within {record['clock_error_us']:.0f} us"
    )
    wrong = sum(r["wrong"] for r in reports)
    if wrong:
        print(f"{wrong} weights differ between the ranks")
    if options.output:
        events = chrome_trace(steps, ops, timelines)
        report.write_json(options.output, {"traceEvents": events, "otherData": {
            "machine": here, "rows": table, "steps": times}})  # fmt: skip
        title = (f"One training step, rank 0 of {options.num_proc}, {options.model}, "
                 f"bind to {options.bind_to}")  # fmt: skip
        plot(options.output, middle_step(steps), ops, found, title)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
