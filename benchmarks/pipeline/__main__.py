"""How fast do modules on ranks of their own train? A residual CNN with a module per rank.

    python -m benchmarks.pipeline --output build/pipeline
    python -m benchmarks.pipeline --ranks 3 --only one,delayed,decoupled

Compares with one process of one thread on one core: one process with as many threads as there are
ranks, data parallelism, and the three schedules of `Pipelined`, every rank with one thread, all
with the same global batch. Each of them has a job of its own in each round, in turn. A round is
compared with itself: a slow minute of the machine changes both sides.

Losses of the first steps must be those of the update rule, computed in one process:
`microbatch` is exact, `delayed` and `decoupled` apply gradients that are late by a number of steps.
Exits with 1 on wrong numbers or a job that failed; a missed target changes nothing.

Step: of the slowest rank. Idle: the part of a rank's time in which it waits for a message. Memory:
the peak of a process beyond what it had before the model was made. Sent: what a rank must send
(`ringar.stats`) in one step.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from typing import Any

from benchmarks.harness import command, launch, machine, report, results
from benchmarks.harness import targets as bounds
from benchmarks.harness.jobs import Reports, run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.pipeline.report import (
    Measured,
    Plan,
    plans,
    published_text,
    rows,
    rows_text,
    targets,
)
from benchmarks.pipeline.worker import SCHEDULES

LIMIT = 300.0
TOLERANCE = 1e-4
"""Relative, of losses: some steps in float32, summed in another order."""
LATE = {"delayed": 1, "decoupled": 2}
"""By how many steps a gradient gets older at each cut on its way back."""


def run(name: str, plan: Plan, job: dict[str, Any], turn: int = 0) -> Reports:
    """Runs a job; `turn` chooses the core of one that has not all of them.

    Raises:
        JobFailedError: the job failed.
    """
    usable = sorted(os.sched_getaffinity(0))
    cores = [usable[(turn + i) % len(usable)] for i in range(plan.threads)]
    options = {**job, "plan": name, "ranks": plan.ranks, "threads": plan.threads, "cores": cores}
    return run_worker(
        "benchmarks.pipeline.worker", options, plan.ranks, deadline=LIMIT,
        command=launch.one_process,
    )  # fmt: skip


def staleness(ranks: int) -> dict[str, list[int]]:
    """Returns by how many steps the gradients of each module are late, by update rule."""
    rules = {"one": 0, **LATE}
    return {rule: [delay * (ranks - 1 - k) for k in range(ranks)] for rule, delay in rules.items()}


def prepare(outcome: Measured, chosen: dict[str, Plan], job: dict[str, Any], ranks: int) -> None:
    """Finds the cuts, which are then the same for all schedules, and the losses to reach."""
    if not job["cuts"] and any(name in SCHEDULES for name in chosen):
        print("where to cut", file=sys.stderr, flush=True)
        job["cuts"] = run("cuts", Plan("", ranks), job)[0]["cuts"]
    outcome.cuts = job["cuts"]
    print("the losses to reach", file=sys.stderr, flush=True)
    rules = staleness(ranks) if outcome.cuts else {"one": [0]}
    all_cores = Plan("", threads=len(os.sched_getaffinity(0)))
    (reference,) = run("references", all_cores, {**job, "staleness": rules})
    outcome.references = reference["losses"]
    if not told_apart(outcome.references):
        outcome.reasons["check of losses"] = "the update rules give nearly the same"


def told_apart(references: dict[str, list[float]]) -> bool:
    """Returns whether the losses of no update rule would pass for those of another."""
    return all(
        any(abs(a - b) > 3 * TOLERANCE * abs(b) for a, b in zip(left, right, strict=True))
        for left, right in itertools.combinations(references.values(), 2)
    )


def measure(outcome: Measured, chosen: dict[str, Plan], job: dict[str, Any], rounds: int) -> None:
    """Adds the turns of all plans; one that fails gets no other."""
    for number in range(rounds):
        for name, plan in chosen.items():
            if plan.title in outcome.reasons:
                continue
            print(f"round {number + 1} of {rounds}: {plan.title}", file=sys.stderr, flush=True)
            try:
                outcome.turns.setdefault(name, []).append(run(name, plan, job, number))
            except JobFailedError as error:
                outcome.reasons[plan.title] = str(error)


def wrong_losses(outcome: Measured) -> int:
    """Counts losses of the first steps that are not those of the update rule."""
    count = 0
    for name, turns in outcome.turns.items():
        expected = outcome.references.get(name if name in LATE else "one", [])
        for reports in turns:
            for r in reports:
                pairs = zip(r["losses"], expected, strict=True)
                # So written, NaN is wrong, too.
                count += sum(not abs(a - b) <= TOLERANCE * abs(b) for a, b in pairs)
    return count


def parser() -> argparse.ArgumentParser:
    result = command.parser(
        "benchmarks.pipeline", __doc__, "writes OUTPUT.json, for benchmarks.pipeline.plot"
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
    return result


def parse(arguments: list[str] | None) -> tuple[argparse.Namespace, dict[str, Plan]]:
    """Returns the options, and the plans that they choose."""
    cli = parser()
    options = cli.parse_args(arguments)
    if options.ranks < 2 or options.batch % options.ranks:
        cli.error("--ranks must be at least 2 and divide --batch")
    if options.cuts and options.cuts.count(",") != options.ranks - 2:
        cli.error("--cuts must be one layer less than --ranks")
    all_plans = plans(options.ranks)
    names = options.only.split(",") if options.only else list(all_plans)
    if unknown_names := sorted(set(names) - set(all_plans)):
        cli.error(f"--only: {', '.join(unknown_names)}: known are {', '.join(all_plans)}")
    return options, {name: plan for name, plan in all_plans.items() if name in names}


def main(arguments: list[str] | None = None) -> int:
    options, chosen = parse(arguments)
    job = {key: getattr(options, key)
           for key in ("batch", "blocks", "width", "microbatches", "steps")}  # fmt: skip
    job["cuts"] = options.cuts.split(",") if options.cuts else []
    outcome = Measured()
    try:
        prepare(outcome, chosen, job, options.ranks)
    except JobFailedError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    measure(outcome, chosen, job, options.rounds)
    errors, table = wrong_losses(outcome), rows(outcome, chosen, options.batch)
    host = machine.describe()
    layers = 1 + 3 * (2 * options.blocks + 1)
    print(f"# Residual CNN of {layers} layers, {options.batch} images of 32 x 32 per step, "
          f"{machine.headline(host)}\n")  # fmt: skip
    print(rows_text(table) + "\n")
    if outcome.cuts:
        print(f"Cut after {', '.join(outcome.cuts)}. {published_text(options.ranks)}\n")
    if found_targets := targets(table, options.ranks):
        print(bounds.table(found_targets))
    print(report.missing_lines(outcome.reasons), end="")
    data = {
        "tried": {"plans": list(chosen)},
        "missing": outcome.reasons,
        "job": job,
        "rounds": options.rounds,
        "references": outcome.references,
        "rows": list(table.values()),
    }
    name = f"pipeline-{options.ranks}-ranks-width-{options.width}"
    results.keep(name, host, data, options.output)
    if errors:
        print(f"{errors} losses are not those of the update rule", file=sys.stderr)
    return 1 if errors or outcome.reasons else 0


if __name__ == "__main__":
    sys.exit(main())
