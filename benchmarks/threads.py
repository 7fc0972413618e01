"""Which threads and which binding train a model fastest on this machine?

    python -m benchmarks.threads --model small_cnn -np 2

Tries intra-op x inter-op threads x binding, each in a job of its own and all of them in turn, and
prints the best setting with the command line that uses it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from typing import Any

from benchmarks import machine, report
from benchmarks.models import MODELS
from benchmarks.series import Series
from benchmarks.training import train

Setting = tuple[int, int, str]
"""Intra-op threads, inter-op threads, binding."""


def settings(ranks: int, cores: int) -> list[Setting]:
    """What is worth trying: powers of two up to all cores for one op, 1 or more ops at once."""
    intra = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= max(1, cores)]
    inter = [1, 2, 4] if cores > 1 else [1, 2]
    binding = ["core", "none"] if ranks <= cores else ["none"]
    return list(itertools.product(intra, inter, binding))


def search(model: str, ranks: int, rounds: int) -> dict[Setting, Series]:
    """Measures all settings in turn, ``rounds`` times."""
    found = {setting: Series() for setting in settings(ranks, len(os.sched_getaffinity(0)))}
    for number in range(rounds):
        for (intra, inter, binding), result in found.items():
            print(
                f"round {number + 1} of {rounds}: intra-op {intra}, inter-op {inter}, "
                f"bind to {binding}",
                file=sys.stderr,
            )
            train(model, ranks, result, intra=intra, inter=inter, bind_to=binding)
    return found


def rows(found: dict[Setting, Series], batch: int, ranks: int) -> list[dict[str, Any]]:
    """Plain data, fastest first."""
    table = [
        {"intra": intra, "inter": inter, "bind_to": binding, **result.summary(),
         "rate": ranks * batch / result.seconds}
        for (intra, inter, binding), result in found.items()
        if result.rounds
    ]  # fmt: skip
    return sorted(table, key=lambda row: row["seconds"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.threads",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="small_cnn", choices=list(MODELS))
    parser.add_argument("-np", "--num-proc", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", default=None, help="writes OUTPUT.json and OUTPUT.png")
    options = parser.parse_args(arguments)
    found = search(options.model, options.num_proc, options.rounds)
    table = rows(found, MODELS[options.model][1], options.num_proc)
    here = machine.describe()
    print(f"# threads for {options.model} on {options.num_proc} ranks: {machine.headline(here)}")
    headers = ["intra-op", "inter-op", "bind to", "images/s", "step", "min", "max"]
    lines = [
        [row["intra"], row["inter"], row["bind_to"], f"{row['rate']:.4g}"]
        + [report.time_text(row[key]) for key in ("seconds", "min", "max")]
        for row in table
    ]
    print(report.table(headers, lines))
    for setting, result in found.items():
        if result.failure:
            print(f"{setting}: not measured ({result.failure})")
    if table:
        best = table[0]
        print(
            f"best: RINGAR_INTRA_OP_THREADS={best['intra']} "
            f"RINGAR_INTER_OP_THREADS={best['inter']} "
            f"ringarrun -np {options.num_proc} --bind-to {best['bind_to']} python train.py"
        )
    if options.output:
        report.write_json(options.output, {"machine": here, "rows": table})
        report.plot_threads(options.output, table, options.model)
    return 1 if not table or any(row["wrong"] for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
