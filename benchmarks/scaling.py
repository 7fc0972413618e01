"""How many images per second do N ranks train, against N times those of one?

    python -m benchmarks.scaling
    python -m benchmarks.scaling --models alexnet,resnet50 --ranks 1,2 --output build/scaling

Weak scaling, as in Horovod's paper: one thread and one batch per rank, so that the work grows with
the ranks and ideal is a straight line. The weights of all ranks are compared after each run; a
difference, or a case that fails, makes the exit code 1. "plain" is as many plain Keras processes
side by side: what the machine gives to N processes that do not communicate, since cores share
caches and memory.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks import machine, report
from benchmarks.models import MODELS
from benchmarks.overhead import failures
from benchmarks.series import Series
from benchmarks.training import train


def collect(
    models: list[str], ranks: list[int], rounds: int
) -> dict[tuple[str, int, bool], Series]:
    """Measures every model and number of ranks in turn, ``rounds`` times."""
    cases = [(m, n, ringar) for m in models for n in ranks for ringar in (False, True)]
    found = {case: Series() for case in cases}
    for number in range(rounds):
        for (model, n, with_ringar), result in found.items():
            what = "ringar" if with_ringar else "plain"
            print(f"round {number + 1} of {rounds}: {model}, {n} x {what}", file=sys.stderr)
            train(model, n, result, with_ringar=with_ringar)
    return found


def rows(found: dict[tuple[str, int, bool], Series]) -> list[dict[str, Any]]:
    """Plain data, a row per case that ended well."""
    table = []
    for (model, n, with_ringar), result in found.items():
        alone = found.get((model, 1, False))
        if not result.rounds or alone is None or not alone.rounds:
            continue
        batch = MODELS[model][1]
        rate = n * batch / result.seconds
        ideal = n * batch / alone.seconds
        summary = result.summary()
        table.append(
            {"model": model, "ranks": n, "ringar": with_ringar, "batch": batch, "rate": rate,
             "rate_min": n * batch / summary["max"], "rate_max": n * batch / summary["min"],
             "ideal": ideal, "efficiency": rate / ideal, **summary}
        )  # fmt: skip
    return table


def print_table(table: list[dict[str, Any]]) -> None:
    """Images per second and efficiency."""
    headers = ["model", "ranks", "with", "images/s", "min", "max", "ideal", "efficiency", "#wrong"]
    lines = [
        [row["model"], row["ranks"], "ringar" if row["ringar"] else "plain, no communication"]
        + [f"{row[key]:.4g}" for key in ("rate", "rate_min", "rate_max", "ideal")]
        + [f"{row['efficiency']:.1%}", row["wrong"]]
        for row in table
    ]
    print(report.table(headers, lines))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", default="mlp,small_cnn,alexnet", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--ranks", default="1,2", help="numbers of ranks (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", default=None, help="writes OUTPUT.json and OUTPUT.png")
    options = parser.parse_args(arguments)
    ranks = [int(n) for n in options.ranks.split(",")]
    if 1 not in ranks:
        parser.error("--ranks must contain 1, which ideal is taken from")
    found = collect(options.models.split(","), ranks, options.rounds)
    table = rows(found)
    here = machine.describe()
    print(f"# scaling: {machine.headline(here)}")
    print_table(table)
    missing = failures(found)
    print(report.missing_lines(missing), end="")
    if options.output:
        report.write_json(options.output, {"machine": here, "rows": table, "missing": missing})
        report.plot_scaling(options.output, table)
    return 1 if missing or any(row["wrong"] for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
