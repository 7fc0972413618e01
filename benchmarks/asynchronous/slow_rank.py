"""How much does one slow rank slow a job down?

    python -m benchmarks.asynchronous.slow_rank --output build/slow-rank

Trains a model on four ranks, the last of which sleeps after each step until it has taken four times
as long: with gradients in every step, by `ringar.Downpour`, and by Downpour with stale synchronous
shards. A figure is the steps per second of the other three ranks, beside those of a job in which no
rank is slow, in turns. OUTPUT.png shows their steps over time, and how stale pushes were. The
weights that all ranks have in the end are compared. Exits with 1 if they differ or a job failed; a
missed target changes nothing.
"""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

from benchmarks.harness import command, machine, report, results
from benchmarks.harness.jobs import run_worker
from benchmarks.harness.plot import pyplot, save
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.targets import Target, table

WORKER = "benchmarks.asynchronous.slow_rank_worker"
WAYS = ("gradients", "downpour", "ssp", "ssp, small bound")
Outcome = dict[str, dict[str, list[dict[str, Any]]]]
"""By way, and by "even" and "slow": a report of each round, with the ranks' step times."""


def rate_of(round_: dict[str, Any]) -> float:
    """Returns the steps per second of all ranks but the last one."""
    return sum(len(times) / times[-1] for times in round_["times"][:-1])


def retention(outcome: Outcome, way: str) -> list[float]:
    """Returns the percentage of steps per second that each round with a slow rank kept."""
    pairs = zip(outcome[way]["slow"], outcome[way]["even"], strict=True)
    return [100 * rate_of(slow) / rate_of(even) for slow, even in pairs]


def targets(outcome: Outcome) -> list[Target]:
    """Returns the targets of Downpour and of stale synchronous shards."""
    return [
        Target(f"steps/s beside a slow rank, {way}, of those without", 85, "%",
               [median(retention(outcome, way))])
        for way in ("downpour", "ssp")
    ]  # fmt: skip


def text(outcome: Outcome) -> str:
    """Returns the targets, then the figures."""
    rows = []
    for way, by_kind in outcome.items():
        even, slow = (median(map(rate_of, by_kind[kind])) for kind in ("even", "slow"))
        parts = retention(outcome, way)
        spread = (f"{part:.1f}%" for part in (median(parts), min(parts), max(parts)))
        rows.append([way, f"{even:.4g}", f"{slow:.4g}", *spread])
    headers = ["the other three ranks", "steps/s, none slow", "one slow", "kept", "min", "max"]
    return f"{table(targets(outcome))}\n\n{report.table(headers, rows)}"


def staleness(round_: dict[str, Any]) -> list[int]:
    """Returns the number of pushes of each staleness, over the shards of all ranks."""
    counts = [0] * max(map(len, round_["staleness"]))
    for of_rank in round_["staleness"]:
        for tau, count in enumerate(of_rank):
            counts[tau] += count
    return counts


def draw(outcome: Outcome, path: str) -> None:
    """Draws the steps of one of the other ranks over time, and how stale pushes were."""
    plt = pyplot()
    figure, (axes, below) = plt.subplots(2, figsize=(7, 7))
    for way, by_kind in outcome.items():
        times = by_kind["slow"][-1]["times"][0]
        axes.plot(times, range(1, len(times) + 1), label=way)
    times = outcome["downpour"]["slow"][-1]["times"][-1]
    axes.plot(times, range(1, len(times) + 1), ":", color="0.4", label="the slow rank, downpour")
    axes.set_title("Steps of one rank beside a slow one", loc="left", fontsize=10)
    axes.set_xlabel("seconds")
    axes.set_ylabel("steps of a rank that is not slow")
    axes.legend(frameon=False)
    for way in ("downpour", "ssp, small bound"):
        counts = staleness(outcome[way]["slow"][-1])
        below.step(range(len(counts)), counts, where="mid", label=way)
    below.set_title("How stale gradients were, all ranks", loc="left", fontsize=10)
    below.set_yscale("log")
    below.set_xlabel("staleness of a push: the updates since its parameters")
    below.set_ylabel("pushes")
    below.legend(frameon=False)
    figure.tight_layout()
    save(figure, path)


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("benchmarks.asynchronous.slow_rank", __doc__)
    add = parser.add_argument
    add("-np", "--num-proc", type=int, default=4, help="ranks (default %(default)s)")
    add("--model", default="small_cnn", help="of benchmarks/training/models.py (%(default)s)")
    add("--rounds", type=int, default=3, help="jobs of each kind (default %(default)s)")
    add("--seconds", type=float, default=6.0, help="of a job (default %(default)s)")
    add("--slow", type=float, default=4.0, help="as many times slower (default %(default)s)")
    add("--bound", type=int, default=100_000, help='of "ssp": more than it trains')
    options = parser.parse_args(arguments)
    host = machine.describe()
    outcome: Outcome = {way: {"even": [], "slow": []} for way in WAYS}
    errors = 0
    try:
        for number in range(options.rounds):
            for way in WAYS:
                for kind in ("even", "slow"):
                    print(f"round {number + 1} of {options.rounds}: {way}, {kind}", file=sys.stderr)
                    job = {"model": options.model, "way": way, "seconds": options.seconds,
                           "slow": options.slow if kind == "slow" else 1.0,
                           "bound": options.bound}  # fmt: skip
                    reports = run_worker(WORKER, job, options.num_proc, deadline=120.0)
                    keys = ("times", "staleness")
                    outcome[way][kind].append({key: [r[key] for r in reports] for key in keys})
                    errors += sum(r["wrong"] for r in reports)
    except JobFailedError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"# One slow rank of {options.num_proc}, {options.model}: {machine.headline(host)}")
    print(text(outcome))
    if options.output:
        draw(outcome, f"{options.output}.png")
    rates = {
        way: {kind: [rate_of(turn) for turn in rounds] for kind, rounds in by_kind.items()}
        for way, by_kind in outcome.items()
    }
    scope = {"ways": list(WAYS), "rounds": [options.rounds], "model": [options.model]}
    results.keep("slow-rank", host, {"tried": scope, "missing": {}, "rates": rates}, options.output)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
