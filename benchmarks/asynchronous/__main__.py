"""How much time do fewer exchanges than steps save on a slow network?

    python -m benchmarks.asynchronous --output build/bench-asynchronous
    python -m benchmarks.asynchronous --rounds 1 --rate 1000

Trains a model on two hosts of this machine (tests/hosts: namespaces whose link has a rate) in three
ways that take turns: without any exchange, with gradients in every step, and by `ringar.LocalSGD`.
PyTorch, with its PostLocalSGDOptimizer, then does the same in a job of its own on these hosts; the
report names it if it cannot be installed. A figure is the time of a step, the mean of a period, on
all ranks. Weights are compared in the end. Exits with 1 if they differ or ringar's job failed; a
missed target changes nothing.
"""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

from benchmarks.asynchronous import pytorch
from benchmarks.harness import command, launch, machine, report, results
from benchmarks.harness.jobs import Reports, run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.targets import Target, table
from tests.hosts import Hosts, unavailable

WORKER = "benchmarks.asynchronous.local_worker"
PYTORCH_WORKER = "benchmarks.asynchronous.local_pytorch"

Outcome = dict[str, dict[str, Any]]
"""By way: `seconds` of a step, a figure per turn; `bytes` of a step; `wrong`, a number."""


def measure(job: dict[str, Any], rate: float, hosts: int) -> tuple[Outcome, dict[str, str]]:
    """Runs the jobs of ringar and of PyTorch; returns the figures, and why PyTorch has none.

    Raises:
        JobFailedError: ringar's job failed.
    """
    reasons: dict[str, str] = {}
    with Hosts(hosts, rate_mbit=rate) as places:
        deadline = 120.0 + 30.0 * job["rounds"]
        on_hosts = launch.on_hosts(places, 1, "tcp", ())
        outcome = by_way(run_worker(WORKER, job, hosts, deadline=deadline, command=on_hosts))
        try:
            reports = pytorch.run_worker(
                PYTORCH_WORKER, job, hosts, deadline=deadline, command=on_hosts
            )
            outcome |= by_way(reports)
        except JobFailedError as error:
            reasons[pytorch.TITLE] = str(error)
    return outcome, reasons


def by_way(reports: Reports) -> Outcome:
    """Returns the figures of a job; the seconds are those of the slowest rank."""
    return {
        name: {
            "seconds": [
                max(turns)[0] for turns in zip(*(r["found"][name] for r in reports), strict=True)
            ],
            "bytes": reports[0]["found"][name][-1][1],
            "wrong": sum(r["wrong"] for r in reports),
        }
        for name in reports[0]["found"]
    }


def targets(outcome: Outcome, period: int) -> list[Target]:
    """Returns the targets of local steps."""
    turns = zip(outcome["local steps"]["seconds"], outcome["no exchange"]["seconds"], strict=True)
    excess = median(100 * (local / plain - 1) for local, plain in turns)
    fewer = outcome["gradients"]["bytes"] / outcome["local steps"]["bytes"]
    return [
        Target(f"bytes of gradients, of those of periods of {period} steps", 10, "x", [fewer]),
        Target("a step, more than without exchange", 10, "%", [excess], at_most=True),
    ]


def text(outcome: Outcome, period: int) -> str:
    """Returns the targets, then the figures."""
    rows = [
        [
            name,
            *map(report.time_text, (median(s), min(s), max(s))),
            f"{figures['bytes'] / 1e6:.3g} MB",
        ]
        for name, figures in outcome.items()
        for s in [figures["seconds"]]
    ]
    lines = report.table(["a step", "median", "min", "max", "sent by a host"], rows)
    return f"{table(targets(outcome, period))}\n\n{lines}"


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("benchmarks.asynchronous", __doc__)
    add = parser.add_argument
    add("--hosts", type=int, default=2, help="of the job (default %(default)s)")
    add("--rate", type=float, default=100, help="Mbit/s of a host (default %(default)s)")
    add("--model", default="resnet20", help="of benchmarks/training/models.py (%(default)s)")
    add("--period", type=int, default=16, help="steps (default %(default)s)")
    add("--rounds", type=int, default=5, help="turns of each way (default %(default)s)")
    options = parser.parse_args(arguments)
    if reason := unavailable():
        print(f"cannot measure: {reason}", file=sys.stderr)
        return 2
    host = machine.describe()
    job = {"model": options.model, "period": options.period, "rounds": options.rounds}
    try:
        outcome, reasons = measure(job, options.rate, options.hosts)
    except JobFailedError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"# Local steps, {options.hosts} hosts of {options.rate:g} Mbit/s, {options.model}: "
          f"{machine.headline(host)}\n{text(outcome, options.period)}")  # fmt: skip
    print(report.missing_lines(reasons), end="")
    scope = {"hosts": [options.hosts], "rounds": [options.rounds], "model": [options.model]}
    data = {"tried": scope, "missing": reasons, **outcome}
    results.keep("asynchronous", host, data, options.output)
    return 1 if any(figures["wrong"] for figures in outcome.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
