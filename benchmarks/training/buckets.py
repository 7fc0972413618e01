"""Which bucket size trains fastest?

    python -m benchmarks.training.buckets --models small_cnn,alexnet -np 2

Small buckets leave early, while the backward pass still runs, but each costs a collective's latency
and an op; one large bucket leaves when everything is there. Tries bucket sizes with the default
first bucket, then first buckets with the default size, all of them in the same processes and in
turn, beside the same step with no exchange at all. Sizes that make the same buckets for a model are
measured once. DEFAULT_BUCKET_BYTES and DEFAULT_FIRST_BUCKET_BYTES in ringar/keras/buckets.py are
what this has shown.
"""

from __future__ import annotations

import argparse
import math
import sys
from statistics import median, quantiles
from typing import Any

from benchmarks.harness import command, machine, processes, report, results
from benchmarks.harness.command import parse_size
from benchmarks.harness.series import slowest
from benchmarks.training.jobs import DEFAULT, Candidate, train_in_turn
from benchmarks.training.models import MODELS
from ringar.keras.buckets import DEFAULT_BUCKET_BYTES, DEFAULT_FIRST_BUCKET_BYTES

STEPS = {"mlp": 300, "small_cnn": 20, "alexnet": 1, "resnet50": 1}
"""Steps per round and candidate."""

_CLEARLY = 0.01
"""The part of a step by which a candidate has to win to be called better than the default."""


def candidates(sizes: list[int], firsts: list[int]) -> list[Candidate]:
    """Returns the default, each size with the other's default, and one bucket for all."""
    choices = [DEFAULT]
    choices += [(size, min(size, DEFAULT_FIRST_BUCKET_BYTES)) for size in sizes]
    choices += [(DEFAULT_BUCKET_BYTES, min(first, DEFAULT_BUCKET_BYTES)) for first in firsts]
    return list(dict.fromkeys([*choices, (max(sizes), max(sizes))]))


def measure(model: str, trials: list[Candidate], options: argparse.Namespace) -> dict[str, Any]:
    """Trains with all candidates in one job: seconds per step of the slowest rank in each round.

    Raises:
        JobFailedError: the job failed.
    """
    ranks = train_in_turn(
        options.num_proc, options.bind_to, model=model, candidates=[*trials, None],
        rounds=options.rounds, steps=options.steps or STEPS[model],
    )  # fmt: skip
    seconds = [slowest(rank["seconds"][i] for rank in ranks) for i in range(len(trials) + 1)]
    plans = [tuple(plan) for plan in ranks[0]["plans"]]
    return {"plans": plans, "seconds": seconds, "wrong": sum(rank["wrong"] for rank in ranks)}


def rows(model: str, trials: list[Candidate], outcome: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns plain data, a row per candidate and one of no exchange.

    `ratio`, with its quartiles, is the step over the default's in the same round, so that a slow
    minute of the machine changes both; `same_as` is the candidate that makes the same buckets.
    """
    table = []
    for i, (plan, times) in enumerate(zip(outcome["plans"], outcome["seconds"], strict=True)):
        ratios = [t / d for t, d in zip(times, outcome["seconds"][0], strict=True)]
        quarters = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        first = outcome["plans"].index(plan)
        bucket, first_bucket = trials[i] if i < len(trials) else (None, None)
        table.append(
            {"model": model, "bucket": bucket, "first_bucket": first_bucket, "buckets": len(plan),
             "same_as": trials[first] if first < i < len(trials) else None,
             "seconds": median(times),
             "min": min(times), "max": max(times), "ratio": median(ratios),
             "ratio_low": quarters[0], "ratio_high": quarters[2]}
        )  # fmt: skip
    return table


def choice(table: list[dict[str, Any]]) -> tuple[Candidate, dict[Candidate, float]]:
    """Returns the best default, and each candidate's step over the default's (models' mean).

    The default is kept unless another one wins by more than a hundredth in the mean, and in three
    quarters of its rounds with each of the models.
    """
    by_candidate: dict[Candidate, list[dict[str, Any]]] = {}
    for row in table:
        if row["bucket"] is not None:
            by_candidate.setdefault((row["bucket"], row["first_bucket"]), []).append(row)
    means = {
        candidate: math.prod(row["ratio"] for row in group) ** (1 / len(group))
        for candidate, group in by_candidate.items()
    }
    clearly = [
        candidate
        for candidate, group in by_candidate.items()
        if means[candidate] < 1 - _CLEARLY and all(row["ratio_high"] <= 1 for row in group)
    ]
    return min(clearly, key=lambda candidate: means[candidate], default=DEFAULT), means


def candidate_text(candidate: Candidate) -> str:
    """Returns a candidate as "8 MiB, first 1 MiB"."""
    return f"{report.size_text(candidate[0])}, first {report.size_text(candidate[1])}"


def table_text(table: list[dict[str, Any]]) -> str:
    """Returns a line per model and candidate."""
    lines = []
    for row in table:
        if row["same_as"]:
            figures = [f"the same as {candidate_text(row['same_as'])}", "", "", "", ""]
        else:
            figures = report.spread(row)
            figures.append(f"{row['ratio']:.3f}")
            figures.append(f"{row['ratio_low']:.3f} to {row['ratio_high']:.3f}")
        sizes = ["no exchange", ""]
        if row["bucket"] is not None:
            sizes = [report.size_text(row["bucket"]), report.size_text(row["first_bucket"])]
        lines.append([row["model"], *sizes, row["buckets"], *figures])
    headers = ["model", "bucket", "first", "buckets", "step", "min", "max", "of the default's",
               "quartiles"]  # fmt: skip
    return report.table(headers, lines)


def parser() -> argparse.ArgumentParser:
    cli = command.parser("benchmarks.training.buckets", __doc__)
    cli.add_argument("--models", default="small_cnn,alexnet", help=f"of {', '.join(MODELS)}")
    cli.add_argument("-np", "--num-proc", type=int, default=2, help="ranks (default 2)")
    cli.add_argument("--bind-to", default="auto", help="core, none, numa (default: as ringarrun)")
    cli.add_argument("--sizes", default="512K,2M,8M,32M,1G", help="bytes, as in 512K,8M")
    cli.add_argument("--first-sizes", default="64K,256K,1M,4M,8M", help="of the first bucket")
    cli.add_argument("--rounds", type=int, default=12)
    cli.add_argument("--steps", type=int, default=None, help="steps per round")
    return cli


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    trials = candidates(
        [parse_size(size) for size in options.sizes.split(",")],
        [parse_size(size) for size in options.first_sizes.split(",")],
    )
    table, failures, errors = [], {}, 0
    for model in options.models.split(","):
        print(f"{model}: {len(trials)} candidates in turn", file=sys.stderr)
        try:
            outcome = measure(model, trials, options)
        except processes.JobFailedError as error:
            failures[model] = str(error)
            continue
        table += rows(model, trials, outcome)
        errors += outcome["wrong"]
    host = machine.describe()
    print(f"# bucket sizes on {options.num_proc} ranks, bind to {options.bind_to}: "
          f"{machine.headline(host)}")  # fmt: skip
    print(table_text(table))
    for model, why in failures.items():
        print(f"{model}: not measured ({why})")
    if table:
        best, means = choice(table)
        conclusion = "stays" if best == DEFAULT else "should change"
        print(f"the default ({candidate_text(DEFAULT)}) {conclusion}: best is "
              f"{candidate_text(best)}, {means[best]:.3f} of the default's step")  # fmt: skip
    if errors:
        print(f"{errors} weights differ between the ranks")
    data = {
        "tried": {"models": options.models.split(","), "sizes": list(map(candidate_text, trials))},
        "rows": table,
        "missing": failures,
        "wrong": errors,
    }
    results.keep(f"buckets-{options.num_proc}-ranks", host, data, options.output)
    return 1 if failures or errors else 0


if __name__ == "__main__":
    sys.exit(main())
