"""What does splitting a net cost and save? AlexNet on two ranks, by several plans.

    python -m benchmarks.split --output build/split
    python -m benchmarks.split --rounds 1 --steps 1 --skip hosts

One process on all cores, data parallelism, the split of the paper, every layer communicating, and
the hybrid of split dense and data-parallel convolutions (examples/alexnet.py), all with the same
global batch; then data parallelism, the split and the hybrid on two hosts behind slow links
(tests/hosts; needs root, iproute2 and Open MPI). Losses of the first steps must be those of one
process. Prints the rows beside their targets. Exits with 1 on wrong numbers or a job that failed; a
missed target changes nothing.

Bytes are those that a rank must send (`ringar.stats`), per image of the global batch. Memory is the
peak of a process beyond what it had before the model was made.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import command, launch, machine, report, results
from benchmarks.harness import targets as bounds
from benchmarks.harness.jobs import Reports, run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.series import Series, slowest
from benchmarks.harness.targets import Target
from tests.hosts import JUMBO_MTU, Hosts, find_open_mpi, unavailable

RANKS, LIMIT, RATE_MBIT = 2, 900.0, 200.0
TOLERANCE = 1e-4
"""Relative, of losses: two steps in float32, summed in another order."""


@dataclass(frozen=True)
class Plan:
    """One way to train, and the one-process net that it must equal."""

    title: str
    plan: str
    ranks: int = RANKS
    groups: int | None = None
    normalization_groups: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"plan": self.plan, "groups": self.groups,
                "normalization_groups": self.normalization_groups}  # fmt: skip


ONE = Plan("one process, all cores", "whole", 1)
UNGROUPED = Plan("one process, no groups", "whole", 1, 1, 2)
PARALLEL = Plan("data-parallel", "whole")
SPLIT = Plan("split as in the paper", "split")
ALL = Plan("every layer communicating", "all", RANKS, 1, 2)
HYBRID = Plan("hybrid", "hybrid")
EQUALS = {PARALLEL: ONE, SPLIT: ONE, HYBRID: ONE, ALL: UNGROUPED}


@dataclass
class Measured:
    """Rows by plan, and the reasons of missing ones."""

    local: dict[Plan, dict[str, Any]] = field(default_factory=dict)
    hosts: dict[Plan, dict[str, Any]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    errors: int = 0


def summary(reports: Reports, batch: int) -> dict[str, Any]:
    """Returns a job's row as plain data: times of the slowest rank, the rest of the busiest."""
    series = Series()
    for number in range(len(reports[0]["rounds"])):
        series.rounds.append(slowest(r["rounds"][number] for r in reports))
    volumes = [sum(r["bytes"].values()) for r in reports]
    return {
        **series.summary(),
        "images": batch / series.seconds,
        "bytes": max(volumes),
        "bytes_per_image": max(volumes) / batch,
        "by_layer": reports[0]["bytes"],
        "memory": max(r["memory"] for r in reports),
        "parameters": max(r["parameters"] for r in reports),
        "slots": max(r["slots"] for r in reports),
        "losses": reports[0]["losses"],
    }


def run(plan: Plan, job: dict[str, Any], hosts: Hosts | None = None) -> dict[str, Any]:
    """Runs a plan and returns its row.

    Raises:
        JobFailedError: the job failed.
    """
    reports = run_worker(
        "benchmarks.split.worker", {**job, **plan.options}, plan.ranks, deadline=LIMIT,
        command=launch.one_process if hosts is None else launch.on_hosts(hosts, 1),
    )  # fmt: skip
    return summary(reports, job["batch"])


def measure(rows: dict[Plan, dict[str, Any]], plans: list[Plan], job: dict[str, Any],
            reasons: dict[str, str], hosts: Hosts | None = None) -> None:  # fmt: skip
    """Adds a row for each plan, or the reason why there is none."""
    where = "on two hosts" if hosts is not None else "here"
    for plan in plans:
        print(f"{plan.title}, {where}", file=sys.stderr, flush=True)
        short = {**job, "rounds": 1, "steps": 1} if plan is UNGROUPED else job
        try:
            rows[plan] = run(plan, short, hosts)
        except JobFailedError as error:
            reasons[f"{plan.title}, {where}"] = str(error)


def wrong_losses(local: dict[Plan, dict[str, Any]], rows: dict[Plan, dict[str, Any]]) -> int:
    """Counts losses of the first steps that differ from those of one process."""
    count = 0
    for plan, row in rows.items():
        reference = local.get(EQUALS.get(plan, plan))
        if reference is not None:
            pairs = zip(row["losses"], reference["losses"], strict=True)
            count += sum(
                abs(loss - expected) > TOLERANCE * abs(expected) for loss, expected in pairs
            )
    return count


def targets(outcome: Measured) -> list[Target]:
    """Returns all targets, those without measurements included."""

    def ratio(rows: dict[Plan, dict[str, Any]], over: Plan, under: Plan, *keys: str) -> list[float]:
        if over not in rows or under not in rows:
            return [float("nan")]
        return [rows[over][key] / rows[under][key] for key in keys]

    local, hosts = outcome.local, outcome.hosts
    halves = [100 * part for part in ratio(local, SPLIT, ONE, "parameters", "slots")]
    return [
        Target("split: parameters and optimizer state per rank, of one process", 50, "%", halves,
               at_most=True),
        Target("bytes per step, data-parallel over hybrid", 10, "x",
               ratio(local, PARALLEL, HYBRID, "bytes")),
        Target(f"step on two hosts at {RATE_MBIT:g} Mbit/s, data-parallel over hybrid", 3, "x",
               ratio(hosts, PARALLEL, HYBRID, "seconds")),
    ]  # fmt: skip


def rows_text(rows: dict[Plan, dict[str, Any]]) -> str:
    """Returns the table of all plans."""
    headers = ["plan", "ranks", "step", "min", "max", "images/s", "memory per rank",
               "parameters per rank", "sent per image"]  # fmt: skip
    lines = [
        [plan.title, plan.ranks, *report.spread(row),
         f"{row['images']:.3g}", report.size_text(row["memory"]), f"{row['parameters']:,}",
         report.size_text(int(row["bytes_per_image"]))]
        for plan, row in rows.items() if plan is not UNGROUPED
    ]  # fmt: skip
    return report.table(headers, lines)


def layers_text(rows: dict[Plan, dict[str, Any]]) -> str:
    """Returns the bytes that a rank sends per step for each layer."""
    names = sorted({name for row in rows.values() for name in row["by_layer"]})
    lines = [
        [plan.title, *(report.size_text(int(row["by_layer"].get(name, 0))) for name in names)]
        for plan, row in rows.items() if plan.ranks > 1
    ]  # fmt: skip
    return report.table(["sent per step by", *names], lines)


def parser() -> argparse.ArgumentParser:
    result = command.parser("benchmarks.split", __doc__)
    add = result.add_argument
    add("--batch", type=int, default=64, help="images of a step in all (default %(default)s)")
    add("--rounds", type=int, default=3, help="(default 3)")
    add("--steps", type=int, default=2, help="steps per round (default %(default)s)")
    add("--skip", default="", help="hosts: leave out what needs them")
    return result


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    outcome = Measured()
    job = {"batch": options.batch, "rounds": options.rounds, "steps": options.steps}
    measure(outcome.local, [ONE, UNGROUPED, PARALLEL, SPLIT, ALL, HYBRID], job, outcome.reasons)
    reason = unavailable() or ("" if find_open_mpi() else "no mpirun of Open MPI beside Python")
    if "hosts" not in options.skip and not reason:
        with Hosts(RANKS, rate_mbit=RATE_MBIT, mtu=JUMBO_MTU) as hosts:
            measure(outcome.hosts, [PARALLEL, SPLIT, HYBRID], job, outcome.reasons, hosts)
    elif reason:
        outcome.reasons["two hosts"] = reason
    outcome.errors = sum(
        wrong_losses(outcome.local, rows) for rows in (outcome.local, outcome.hosts)
    )
    host = machine.describe()
    print(f"# AlexNet, {options.batch} images of 227 x 227 per step, {machine.headline(host)}\n")
    print(rows_text(outcome.local) + "\n\n" + layers_text(outcome.local) + "\n")
    if outcome.hosts:
        print(f"Two hosts, {RATE_MBIT:g} Mbit/s:\n\n{rows_text(outcome.hosts)}\n")
    print(bounds.table(targets(outcome)))
    print(report.missing_lines(outcome.reasons), end="")
    data = {
        "tried": {"hosts": [RANKS] if "hosts" not in options.skip else []},
        "missing": outcome.reasons,
        "job": job,
        "local": [{"plan": p.title, **row} for p, row in outcome.local.items()],
        "hosts": [{"plan": p.title, **row} for p, row in outcome.hosts.items()],
    }
    results.keep("split", host, data, options.output)
    if outcome.errors:
        print(f"{outcome.errors} losses differ from those of one process", file=sys.stderr)
    return 1 if outcome.errors or outcome.reasons else 0


if __name__ == "__main__":
    sys.exit(main())
