"""What does ringar add to a training step?

    python -m benchmarks.overhead
    python -m benchmarks.overhead --models mlp --ranks 1,2 --rounds 5

Trains under ``fit``, with one TensorFlow thread per process and in turn: one plain Keras process,
as many plain processes side by side as there are ranks (they share the machine and nothing else:
what no library can beat), and ringar. A step is one batch per rank. The weights of all ranks are
compared after each run; a difference, or a case that fails, makes the exit code 1.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks.harness import machine, report
from benchmarks.harness.series import Series
from benchmarks.training.jobs import train

Case = tuple[str, int, bool]
"""Model, processes, with ringar."""


def collect(cases: list[Case], rounds: int, epochs: int) -> dict[Case, Series]:
    """Measures all cases in turn, ``rounds`` times."""
    found = {case: Series() for case in cases}
    for number in range(rounds):
        for (model, processes, with_ringar), result in found.items():
            what = "ringar" if with_ringar else "plain"
            print(f"round {number + 1} of {rounds}: {model}, {processes} x {what}", file=sys.stderr)
            train(model, processes, result, with_ringar=with_ringar, epochs=epochs)
    return found


def rows(found: dict[Case, Series]) -> list[dict[str, Any]]:
    """Plain data, a row per case that has times.

    ``of_plain``: steps/s over those of as many plain processes; NaN if those failed.
    """
    table = []
    for (model, processes, with_ringar), result in found.items():
        if result.rounds:
            plain = found[model, processes, False]
            seconds = plain.seconds if plain.rounds else float("nan")
            table.append(
                {"model": model, "processes": processes, "ringar": with_ringar,
                 **result.summary(), "of_plain": seconds / result.seconds}
            )  # fmt: skip
    return table


def failures(found: dict[Case, Series]) -> dict[str, str]:
    """Why cases have no times, or fewer than they should have."""
    return {
        f"{model}, {processes} x {'ringar' if with_ringar else 'plain Keras'}": result.failure
        for (model, processes, with_ringar), result in found.items()
        if result.failure
    }


def print_table(table: list[dict[str, Any]]) -> None:
    """Steps per second, and what part of as many plain processes' that is."""
    lines = []
    for row in table:
        added = row["seconds"] * (1 - row["of_plain"])
        lines.append(
            [row["model"], row["processes"], "ringar" if row["ringar"] else "plain Keras"]
            + [report.time_text(row[key]) for key in ("seconds", "min", "max")]
            + [f"{1 / row['seconds']:.4g}", f"{added * 1e6:+.0f} us" if row["ringar"] else ""]
            + [f"{row['of_plain']:.1%}", row["wrong"]]
        )
    headers = ["model", "processes", "with", "step", "min", "max", "steps/s", "added",
               "of plain side by side", "#wrong"]  # fmt: skip
    print(report.table(headers, lines))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", default="mlp,small_cnn", help="of %(default)s")
    parser.add_argument("--ranks", default="1,2,4", help="processes (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs per round")
    parser.add_argument("--output", default=None, help="writes OUTPUT.json")
    options = parser.parse_args(arguments)
    cases = [
        (model, int(processes), with_ringar)
        for model in options.models.split(",")
        for processes in options.ranks.split(",")
        for with_ringar in (False, True)
    ]
    found = collect(cases, options.rounds, options.epochs)
    table, missing = rows(found), failures(found)
    here = machine.describe()
    print(f"# training steps: {machine.headline(here)}")
    print_table(table)
    print(report.missing_lines(missing), end="")
    if options.output:
        report.write_json(options.output, {"machine": here, "rows": table, "missing": missing})
    return 1 if missing or any(row["wrong"] for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
