"""How many updates per second do two ranks make in shared memory, without locks?

    python -m benchmarks.asynchronous.hogwild --output build/bench-hogwild
    python -m benchmarks.asynchronous.hogwild --rounds 1 --examples 4000

Sparse logistic regression, an example per update, by NumPy on `ringar.Window.gather` and
`scatter_add`: one rank; two ranks whose additions are racy, or atomic; two ranks with one lock
around each update (a POSIX mutex in shared memory). Its peers are scikit-learn's SGDClassifier, one
process in Cython, and PyTorch on a tensor of `share_memory_`, one process and two. Each way sees
every example once, and takes turns with the others. A peer that cannot be installed is named. Exits
with 1 if one rank does not compute what NumPy does, if another way ends with another loss, or if
ringar's job failed; a missed target changes nothing.
"""

from __future__ import annotations

import sys
import tempfile
from statistics import median
from typing import Any

from benchmarks.asynchronous import pytorch
from benchmarks.harness import command, machine, report, results
from benchmarks.harness.jobs import run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.targets import Target, table

WORKER = "benchmarks.asynchronous.hogwild_worker"
PYTORCH_WORKER = "benchmarks.asynchronous.hogwild_pytorch"
RANKS = 2
MOST_LOSS = 1.02
"""The loss of any way, of that of one process."""

Outcome = dict[str, Any]
"""`rates` and `losses` by way, a figure per round; `serial`, a loss; `wrong`, a number; `missing`,
the reasons by peer."""


def measure(job: dict[str, Any]) -> Outcome:
    """Lets all ways take turns, and returns their figures.

    Raises:
        JobFailedError: ringar's job failed.
    """
    outcome: Outcome = {"rates": {}, "losses": {}, "wrong": 0, "missing": {}}
    deadline = 120.0 + job["examples"] / 400
    for number in range(job["rounds"]):
        print(f"round {number + 1} of {job['rounds']}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            reports = run_worker(WORKER, {**job, "folder": folder}, RANKS, deadline=deadline)
        outcome["serial"] = reports[0]["serial"]
        outcome["wrong"] += sum(r["wrong"] for r in reports)
        add_turn(outcome, reports[0])
        if pytorch.TITLE in outcome["missing"]:
            continue
        try:
            add_turn(outcome, pytorch.run_worker(PYTORCH_WORKER, job, 1, deadline=deadline)[0])
        except JobFailedError as error:
            outcome["missing"][pytorch.TITLE] = str(error)
    return outcome


def add_turn(outcome: Outcome, turn: dict[str, Any]) -> None:
    """Adds the rate and the loss of each way in a turn, and counts the losses that are wrong."""
    for figures in ("rates", "losses"):
        for way, figure in turn[figures].items():
            outcome[figures].setdefault(way, []).append(figure)
    # Written so that a loss that is no number counts, too.
    outcome["wrong"] += sum(
        not loss <= MOST_LOSS * outcome["serial"] for loss in turn["losses"].values()
    )


def gains(outcome: Outcome, way: str, over: str) -> float:
    """Returns the median, over the rounds, of the rate of one way by that of another."""
    pairs = zip(outcome["rates"][way], outcome["rates"][over], strict=True)
    return median(rate / other for rate, other in pairs)


def targets(outcome: Outcome) -> list[Target]:
    """Returns the targets of two ranks without locks."""
    ways = ("racy", "atomic")
    speedups = [gains(outcome, way, "one rank") for way in ways]
    locked = [gains(outcome, way, "locked") for way in ways]
    return [
        Target("updates/s of two ranks (racy, atomic), of one rank's", 1.7, "x", speedups),
        Target("the same, of two ranks with a lock around each update", 3, "x", locked),
    ]


def text(outcome: Outcome) -> str:
    """Returns the targets, then the figures."""
    rows = [
        [name, *(f"{figure:,.0f}" for figure in (median(r), min(r), max(r))),
         f"{1e6 / median(r):.3g} us", f"{median(outcome['losses'][name]):.4f}"]
        for name, r in outcome["rates"].items()
    ]  # fmt: skip
    headers = ["updates/s", "median", "min", "max", "an update", "final loss"]
    lines = report.table(headers, rows)
    reasons = report.missing_lines(outcome["missing"])
    return (
        f"{table(targets(outcome))}\n\n{lines}\n{reasons}"
        f"The loss of one process: {outcome['serial']:.4f}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("benchmarks.asynchronous.hogwild", __doc__)
    add = parser.add_argument
    add("--features", type=int, default=100_000, help="of an example (default %(default)s)")
    add("--nonzeros", type=int, default=50, help="of them, not zero (default %(default)s)")
    add("--examples", type=int, default=40_000, help="in a turn (default %(default)s)")
    add("--rounds", type=int, default=5, help="turns of each way (default %(default)s)")
    options = parser.parse_args(arguments)
    host = machine.describe()
    job = {name: getattr(options, name) for name in ("features", "nonzeros", "examples", "rounds")}
    try:
        outcome = measure(job)
    except JobFailedError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"# Hogwild!, {job['features']:,} features, {job['nonzeros']} of them in an example: "
          f"{machine.headline(host)}\n{text(outcome)}")  # fmt: skip
    scope = {name: [value] for name, value in job.items()}
    results.keep("hogwild", host, {"tried": scope, **outcome}, options.output)
    return 1 if outcome["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
