"""What do synthetic gradients cost in accuracy, and what do they gain when a rank is slow?

    python -m benchmarks.synthetic --output build/synthetic
    python -m benchmarks.synthetic --ranks 2 --epochs 5 --only true,conditioned

Trains handwritten digits in modules, each on a rank with one thread: with true gradients, with
synthetic ones of several kinds, with none below the last module, and with `delayed`. Then stops the
last of two ranks for two seconds in the middle of an epoch, with `delayed` and with synthetic
gradients. OUTPUT.png shows the accuracy after each epoch, and the steps of both ranks over time.

A run with synthetic gradients is recorded in its first epoch, and repeated in one process by its
messages. Weights that differ by a bit make the exit code 1, and so does a job that failed.

Step: of the slowest rank, in the median. Accuracy: on 360 images that were not trained on.
"""

from __future__ import annotations

import sys
from statistics import mean, median
from typing import Any

from benchmarks.harness import command, machine, report, results
from benchmarks.harness.jobs import Reports, run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.synthetic.plot import draw

WORKER = "benchmarks.synthetic.worker"
WAYS = {
    "true": "true gradients, waited for",
    "conditioned": "synthetic, conditioned on labels",
    "lambda": "the same, lambda = 1",
    "unconditioned": "synthetic",
    "inputs": "synthetic inputs, too",
    "sparse": "conditioned, half of the updates",
    "zero": "none below the last module",
    "delayed": "delayed",
}
STOPPED = ("delayed", "conditioned")


def run(job: dict[str, Any], ranks: int) -> Reports:
    """Runs a job.

    Raises:
        JobFailedError: the job failed.
    """
    options = {**job, "ranks": ranks, "threads": 1, "cores": [0]}
    return run_worker(WORKER, options, ranks, deadline=600.0)


def row(way: str, seeds: list[Reports]) -> dict[str, Any]:
    """Returns the row of a way, from its runs."""
    return {
        "way": WAYS[way],
        "accuracy": mean(reports[0]["accuracy"][-1] for reports in seeds),
        "accuracies": [reports[0]["accuracy"] for reports in seeds],
        "step": median(max(r["step"] for r in reports) for reports in seeds),
        "wrong": sum(r["wrong"] for reports in seeds for r in reports),
    }


def stop_row(way: str, reports: Reports) -> dict[str, Any]:
    """Returns the steps of both ranks over time, and those of rank 0 while rank 1 was stopped."""
    begin, end = reports[1]["stop"]
    meanwhile = sum(begin < moment < end for moment in reports[0]["ends"])
    ends = [[moment - begin for moment in r["ends"]] for r in reports]
    return {"way": WAYS[way], "meanwhile": meanwhile, "seconds": end - begin, "ends": ends}


def text(rows: list[dict[str, Any]], stops: list[dict[str, Any]]) -> str:
    """Returns the tables."""
    accuracy = [
        [entry["way"], f"{100 * entry['accuracy']:.1f}%", report.time_text(entry["step"])]
        for entry in rows
    ]  # fmt: skip
    table = report.table(["gradients", "accuracy", "step"], accuracy)
    steps = [[stop["way"], f"{stop['meanwhile']}"] for stop in stops]
    return f"{table}\n\n" + report.table(["", "steps of rank 0 while rank 1 is stopped"], steps)


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser(
        "benchmarks.synthetic", __doc__, "writes OUTPUT.json and OUTPUT.png"
    )  # fmt: skip
    add = parser.add_argument
    add("--ranks", type=int, default=4, choices=[2, 4], help="modules (default %(default)s)")
    add("--epochs", type=int, default=15, help="(default %(default)s)")
    add("--seeds", type=int, default=1, help="runs of each way (default %(default)s)")
    add("--stop", type=float, default=2.0, help="seconds that rank 1 is stopped (%(default)s)")
    add("--only", default=",".join(WAYS), help="some of %(default)s")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    if unknown_names := sorted(set(names) - set(WAYS)):
        parser.error(f"--only: {', '.join(unknown_names)}: known are {', '.join(WAYS)}")
    host, rows, stops = machine.describe(), [], []
    try:
        for way in names:
            print(WAYS[way], file=sys.stderr, flush=True)
            job = {"way": way, "epochs": options.epochs, "stop": 0.0}
            runs = [run({**job, "seed": seed}, options.ranks) for seed in range(options.seeds)]
            rows.append(row(way, runs))
        for way in STOPPED if options.stop else ():
            print(f"{WAYS[way]}, rank 1 stopped", file=sys.stderr, flush=True)
            job = {"way": way, "epochs": 1, "stop": options.stop, "seed": 0}
            stops.append(stop_row(way, run(job, 2)))
    except JobFailedError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"# Digits in {options.ranks} modules, {machine.headline(host)}\n")
    print(text(rows, stops))
    data = {"tried": {"ways": names}, "missing": {}, "rows": rows, "stops": stops}
    if options.output:
        draw(data, f"{options.output}.png")
    results.keep(f"synthetic-{options.ranks}-ranks", host, data, options.output)
    errors = sum(entry["wrong"] for entry in rows)
    if errors:
        print(f"{errors} weights are not those of the replay", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
