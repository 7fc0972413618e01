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

Found = dict[str, Any]
"""`rates` and `losses` by way, a figure per round; `serial`, a loss; `wrong`, a number; `missing`,
the reasons by peer."""


def measure(job: dict[str, Any]) -> Found:
    """Lets all ways take turns, and returns their figures.

    Raises:
        JobFailedError: ringar's job failed.
    """
    found: Found = {"rates": {}, "losses": {}, "wrong": 0, "missing": {}}
    deadline = 120.0 + job["examples"] / 400
    for number in range(job["rounds"]):
        print(f"round {number + 1} of {job['rounds']}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            reports = run_worker(WORKER, {**job, "folder": folder}, RANKS, deadline=deadline)
        found["serial"] = reports[0]["serial"]
        found["wrong"] += sum(r["wrong"] for r in reports)
        add_turn(found, reports[0])
        if pytorch.TITLE in found["missing"]:
            continue
        try:
            add_turn(found, pytorch.run_worker(PYTORCH_WORKER, job, 1, deadline=deadline)[0])
        except JobFailedError as error:
            found["missing"][pytorch.TITLE] = str(error)
    return found


def add_turn(found: Found, turn: dict[str, Any]) -> None:
    """Adds the rate and the loss of each way in a turn, and counts the losses that are wrong."""
    for figures in ("rates", "losses"):
        for way, figure in turn[figures].items():
            found[figures].setdefault(way, []).append(figure)
    # Written so that a loss that is no number counts, too.
    found["wrong"] += sum(
        not loss <= MOST_LOSS * found["serial"] for loss in turn["losses"].values()
    )


def gains(found: Found, way: str, over: str) -> float:
    """Returns the median, over the rounds, of the rate of one way by that of another."""
    both = zip(found["rates"][way], found["rates"][over], strict=True)
    return median(one / other for one, other in both)


def targets(found: Found) -> list[Target]:
    """Returns the targets of two ranks without locks."""
    ways = ("racy", "atomic")
    one = [gains(found, way, "one rank") for way in ways]
    locked = [gains(found, way, "locked") for way in ways]
    return [
        Target("updates/s of two ranks (racy, atomic), of one rank's", 1.7, "x", one),
        Target("the same, of two ranks with a lock around each update", 3, "x", locked),
    ]


def text(found: Found) -> str:
    """Returns the targets, then the figures."""
    rows = [
        [name, *(f"{figure:,.0f}" for figure in (median(r), min(r), max(r))),
         f"{1e6 / median(r):.3g} us", f"{median(found['losses'][name]):.4f}"]
        for name, r in found["rates"].items()
    ]  # fmt: skip
    headers = ["updates/s", "median", "min", "max", "an update", "final loss"]
    lines = report.table(headers, rows)
    missing = report.missing_lines(found["missing"])
    return (
        f"{table(targets(found))}\n\n{lines}\n{missing}"
        f"The loss of one process: {found['serial']:.4f}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("benchmarks.asynchronous.hogwild", __doc__)
    add = parser.add_argument
    add("--features", type=int, default=100_000, help="of an example (default %(default)s)")
    add("--nonzeros", type=int, default=50, help="of them, not zero (default %(default)s)")
    add("--examples", type=int, default=40_000, help="in a turn (default %(default)s)")
    add("--rounds", type=int, default=5, help="turns of each way (default %(default)s)")
    options = parser.parse_args(arguments)
    here = machine.describe()
    job = {name: getattr(options, name) for name in ("features", "nonzeros", "examples", "rounds")}
    try:
        found = measure(job)
    except JobFailedError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"# Hogwild!, {job['features']:,} features, {job['nonzeros']} of them in an example: "
          f"{machine.headline(here)}\n{text(found)}")  # fmt: skip
    tried = {name: [value] for name, value in job.items()}
    results.keep("hogwild", here, {"tried": tried, **found}, options.output)
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
