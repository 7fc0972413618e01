"""What do modules on ranks of their own gain? A residual CNN, cut into as many as there are ranks.

    python -m benchmarks.pipeline --output build/pipeline
    python -m benchmarks.pipeline --ranks 3 --only one,delayed,decoupled

One process with one thread on one core is what all others are compared with: one process with as
many threads as there are ranks, data parallelism, and the three schedules of `Pipelined`, every
rank with one thread, all with the same global batch. Each round gives each of them a job of its
own, in turn, and is compared with itself: a slow minute of the machine changes both sides.

Losses of the first steps must be those of the update rule, done plainly in one process:
`microbatch` is exact, `delayed` and `decoupled` apply gradients that are late by a number of steps.
Exits with 1 on wrong numbers or a job that failed; a must that is missed changes nothing.

Step: of the slowest rank. Idle: the part of a rank's time in which it waits for a message. Memory:
the peak of a process beyond what it had before the model was made. Sent: what a rank must send
(`ringar.stats`) in one step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import launch, machine, report
from benchmarks.harness.processes import JobFailedError, run_command
from benchmarks.harness.series import Series
from benchmarks.harness.targets import Target
from benchmarks.pipeline.worker import SCHEDULES

MODULE = "benchmarks.pipeline.worker"
LIMIT = 300.0
TOLERANCE = 1e-4
"""Relative, of losses: some steps in float32, summed in another order."""
LATE = {"delayed": 1, "decoupled": 2}
"""By how many steps a gradient gets older at each cut on its way back."""
TARGETS = {"delayed": 1.38, "decoupled": 1.80}
"""Of two modules, over one thread."""
PUBLISHED = {("delayed", 2): 1.37, ("delayed", 3): 1.57,
             ("decoupled", 2): 1.85, ("decoupled", 3): 2.45}  # fmt: skip
"""Over one device, by schedule and modules: Huo et al. (2018) with WideResNet-28-10, and Zhuang et
al. (2019); see ringar/parallel/pipeline/schedule.py."""

Reports = list[dict[str, Any]]
"""Of the ranks of one job."""


@dataclass(frozen=True)
class Plan:
    """One way to train."""

    title: str
    ranks: int = 1
    threads: int = 1


def plans(ranks: int) -> dict[str, Plan]:
    """All of them."""
    return {
        "one": Plan("one process, one thread"),
        "threads": Plan(f"one process, {ranks} threads", threads=ranks),
        "data-parallel": Plan("data-parallel", ranks),
        **{schedule: Plan(f"modules, {schedule}", ranks) for schedule in SCHEDULES},
    }


@dataclass
class Measured:
    """What came of it all."""

    turns: dict[str, list[Reports]] = field(default_factory=dict)
    """By plan, a job per round."""
    references: dict[str, list[float]] = field(default_factory=dict)
    """Losses, by the schedule whose update rule makes them; "one": without delay."""
    cuts: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def run(name: str, plan: Plan, job: dict[str, Any], turn: int = 0) -> Reports:
    """Runs a job; `turn` chooses the core of one that has not all of them.

    Raises:
        JobFailedError: it did not end well.
    """
    usable = sorted(os.sched_getaffinity(0))
    cores = [usable[(turn + i) % len(usable)] for i in range(plan.threads)]
    with tempfile.TemporaryDirectory() as folder:
        options = json.dumps({**job, "plan": name, "ranks": plan.ranks, "threads": plan.threads,
                              "cores": cores, "folder": folder})  # fmt: skip
        program = ["-m", MODULE, options]
        command = [sys.executable, *program]
        if plan.ranks > 1:
            command = launch.ringarrun(Path(sys.prefix), plan.ranks, program)
        run_command(command, deadline=LIMIT)
        return [json.loads(Path(folder, f"{r}.json").read_text()) for r in range(plan.ranks)]


def staleness(ranks: int) -> dict[str, list[int]]:
    """By how many steps the gradients of each module are late, by update rule."""
    rules = {"one": 0, **LATE}
    return {rule: [late * (ranks - 1 - k) for k in range(ranks)] for rule, late in rules.items()}


def prepare(found: Measured, chosen: dict[str, Plan], job: dict[str, Any], ranks: int) -> None:
    """Finds the cuts, which are the same for all schedules then, and the losses to reach."""
    if not job["cuts"] and any(name in SCHEDULES for name in chosen):
        print("where to cut", file=sys.stderr, flush=True)
        job["cuts"] = run("cuts", Plan("", ranks), job)[0]["cuts"]
    found.cuts = job["cuts"]
    print("the losses to reach", file=sys.stderr, flush=True)
    rules = staleness(ranks) if found.cuts else {"one": [0]}
    all_cores = Plan("", threads=len(os.sched_getaffinity(0)))
    (one,) = run("references", all_cores, {**job, "staleness": rules})
    found.references = one["losses"]
    if not told_apart(found.references):
        found.missing["check of losses"] = "the update rules give nearly the same"


def told_apart(references: dict[str, list[float]]) -> bool:
    """Whether losses of one update rule would not pass for those of another."""
    return all(
        any(abs(a - b) > 3 * TOLERANCE * abs(b) for a, b in zip(mine, its, strict=True))
        for mine, its in itertools.combinations(references.values(), 2)
    )


def measure(found: Measured, chosen: dict[str, Plan], job: dict[str, Any], rounds: int) -> None:
    """Adds the turns of all plans; one that fails gets no other."""
    for number in range(rounds):
        for name, plan in chosen.items():
            if plan.title in found.missing:
                continue
            print(f"round {number + 1} of {rounds}: {plan.title}", file=sys.stderr, flush=True)
            try:
                found.turns.setdefault(name, []).append(run(name, plan, job, number))
            except JobFailedError as error:
                found.missing[plan.title] = str(error)


def wrong_losses(found: Measured) -> int:
    """How many losses of the first steps are not those of the update rule."""
    count = 0
    for name, turns in found.turns.items():
        expected = found.references.get(name if name in LATE else "one", [])
        for reports in turns:
            for one in reports:
                pairs = zip(one["losses"], expected, strict=True)
                # So written, NaN is wrong, too.
                count += sum(not abs(a - b) <= TOLERANCE * abs(b) for a, b in pairs)
    return count


def step_seconds(turn: Reports) -> float:
    """Of the slowest rank."""
    return float(max(one["seconds"] for one in turn))


def timeline(turn: Reports) -> list[list[dict[str, Any]]]:
    """What each rank did, in seconds since all were in their timed steps."""
    origin = max(one["begin"] for one in turn)

    def since(event: dict[str, Any]) -> dict[str, Any]:
        return {**event, **{key: round(event[key] - origin, 6) for key in ("begin", "end")}}

    return [[since(event) for event in one["events"]] for one in turn]


def summary(name: str, plan: Plan, turns: list[Reports], alone: list[Reports],
            batch: int) -> dict[str, Any]:  # fmt: skip
    """A plan's row, as plain data; lists have a figure per rank."""
    ranks = range(plan.ranks)
    series = Series([[step_seconds(turn)] for turn in turns])
    ratios = [step_seconds(one) / step_seconds(mine)
              for one, mine in zip(alone, turns, strict=False)]  # fmt: skip
    middle = sorted(turns, key=step_seconds)[len(turns) // 2]
    row = {
        "plan": name,
        "title": plan.title,
        "ranks": plan.ranks,
        **series.summary(),
        "images": batch / series.seconds,
        "times": median(ratios) if ratios else math.nan,
        "times_min": min(ratios, default=math.nan),
        "times_max": max(ratios, default=math.nan),
        "memory": [max(turn[r]["memory"] for turn in turns) for r in ranks],
        "bytes": [max(turn[r]["bytes"] for turn in turns) for r in ranks],
        "losses": turns[0][0]["losses"],
    }
    if name in SCHEDULES:
        for what in ("wait", "forward", "backward"):
            shares = [[turn[r]["shares"].get(what, 0.0) for turn in turns] for r in ranks]
            row[what] = [median(share) for share in shares]
        row["timeline"] = timeline(middle)
    return row


def rows(found: Measured, chosen: dict[str, Plan], batch: int) -> dict[str, dict[str, Any]]:
    """By plan, of those that were measured."""
    alone = found.turns.get("one", [])
    return {name: summary(name, chosen[name], turns, alone, batch)
            for name, turns in found.turns.items() if turns}  # fmt: skip


def targets(table: dict[str, dict[str, Any]], ranks: int) -> list[Target]:
    """Of two modules; what was not measured says so."""
    if ranks != 2:
        return []
    return [
        Target(f"{schedule}, two modules over one thread", bound, "x",
             [table[schedule]["times"] if schedule in table else math.nan])
        for schedule, bound in TARGETS.items()
    ]  # fmt: skip


def rows_text(table: dict[str, dict[str, Any]]) -> str:
    """A table."""
    headers = ["plan", "ranks", "step", "min", "max", "images/s", "over one thread",
               "memory per rank", "idle per rank", "sent per step by rank"]  # fmt: skip
    lines = [
        [row["title"], row["ranks"],
         *(report.time_text(row[key]) for key in ("seconds", "min", "max")),
         f"{row['images']:.4g}",
         f"{row['times']:.2f}x ({row['times_min']:.2f} to {row['times_max']:.2f})",
         each(row["memory"], size_text),
         each(row["wait"], "{:.0%}".format) if "wait" in row else "",
         each(row["bytes"], size_text) if row["ranks"] > 1 else ""]
        for row in table.values()
    ]  # fmt: skip
    return report.table(headers, lines)


def each(figures: Sequence[float], text: Any) -> str:
    """Of all ranks."""
    return ", ".join(text(figure) for figure in figures)


def size_text(size: float) -> str:
    return report.size_text(int(size))


def published_text(ranks: int) -> str:
    """What others have reached, and what the paper's schedule could at best."""
    known = [f"{schedule} {times:g}x" for (schedule, modules), times in PUBLISHED.items()
             if modules == ranks]  # fmt: skip
    # The backward pass takes two thirds of a step and is divided, the forward pass is not.
    ideal = 1 / (1 / 3 + 2 / 3 / ranks)
    text = f"With the forward pass locked, as in its paper, delayed gives {ideal:.2f}x at most"
    return f"{text}; published: {', '.join(known)}." if known else f"{text}."


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m benchmarks.pipeline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = result.add_argument
    add("--ranks", type=int, default=2, help="modules (default %(default)s)")
    add("--batch", type=int, default=16, help="images of a step in all (default %(default)s)")
    add("--blocks", type=int, default=4, help="residual blocks per stage (default %(default)s)")
    add("--width", type=int, default=64, help="channels of the first stage (default %(default)s)")
    add("--microbatches", type=int, default=4, help="(default %(default)s)")
    add("--rounds", type=int, default=5, help="turns of each plan (default %(default)s)")
    add("--steps", type=int, default=20, help="timed steps of a turn (default %(default)s)")
    add("--cuts", default="", help="layers to cut after, as in block1_1 (default: found by time)")
    add("--only", default="", help=f"some of {','.join(plans(2))}")
    add("--output", default=None, help="writes OUTPUT.json, for benchmarks.pipeline.plot")
    return result


def parse(arguments: list[str] | None) -> tuple[argparse.Namespace, dict[str, Plan]]:
    """The options, and the plans that they choose."""
    known = parser()
    options = known.parse_args(arguments)
    if options.ranks < 2 or options.batch % options.ranks:
        known.error("--ranks must be at least 2 and divide --batch")
    if options.cuts and options.cuts.count(",") != options.ranks - 2:
        known.error("--cuts must be one layer less than --ranks")
    every = plans(options.ranks)
    names = options.only.split(",") if options.only else list(every)
    if unknown := sorted(set(names) - set(every)):
        known.error(f"--only: {', '.join(unknown)}: known are {', '.join(every)}")
    return options, {name: plan for name, plan in every.items() if name in names}


def main(arguments: list[str] | None = None) -> int:
    options, chosen = parse(arguments)
    job = {key: getattr(options, key)
           for key in ("batch", "blocks", "width", "microbatches", "steps")}  # fmt: skip
    job["cuts"] = options.cuts.split(",") if options.cuts else []
    found = Measured()
    try:
        prepare(found, chosen, job, options.ranks)
    except JobFailedError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    measure(found, chosen, job, options.rounds)
    wrong, table = wrong_losses(found), rows(found, chosen, options.batch)
    here = machine.describe()
    layers = 1 + 3 * (2 * options.blocks + 1)
    print(f"# Residual CNN of {layers} layers, {options.batch} images of 32 x 32 per step, "
          f"{machine.headline(here)}\n")  # fmt: skip
    print(rows_text(table) + "\n")
    if found.cuts:
        print(f"Cut after {', '.join(found.cuts)}. {published_text(options.ranks)}\n")
    if reached := [target.row() for target in targets(table, options.ranks)]:
        print(report.table(["what", "must", "measured", "reached"], reached))
    print(report.missing_lines(found.missing), end="")
    if options.output:
        report.write_json(options.output, {
            "machine": here, "job": job, "rounds": options.rounds, "missing": found.missing,
            "references": found.references, "rows": list(table.values()),
        })  # fmt: skip
    if wrong:
        print(f"{wrong} losses are not those of the update rule", file=sys.stderr)
    return 1 if wrong or found.missing else 0


if __name__ == "__main__":
    sys.exit(main())
