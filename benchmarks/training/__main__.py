"""What does ringar add to a training step?

    python -m benchmarks.overhead
    python -m benchmarks.overhead --models mlp --ranks 1,2 --rounds 5

Trains under `fit`, with one TensorFlow thread per process and in turn: one plain Keras process,
as many plain processes side by side as there are ranks (they share the machine and nothing else:
what no library can beat), and ringar. A step is one batch per rank. Ranks wait for each other in
every step, so the bound of a step is the mean of the longest of the plain processes' steps, step by
step. The weights of all ranks are compared after each run; a difference, or a case that fails,
makes the exit code 1.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.harness import command, machine, report, results
from benchmarks.harness.series import Series
from benchmarks.training.jobs import Case, cases, collect, failures, title


def rows(outcome: dict[Case, Series]) -> list[dict[str, Any]]:
    """Returns plain data, a row per case that has times.

    `of_plain` is steps/s over those of as many plain processes, `bound` the bound of a step,
    `of_bound` steps/s over those of the bound: all NaN if the plain processes failed.
    """
    table = []
    for (model, processes, with_ringar), result in outcome.items():
        if result.rounds:
            plain = outcome[model, processes, False]
            seconds = plain.seconds if plain.rounds else float("nan")
            table.append(
                {"model": model, "processes": processes, "ringar": with_ringar,
                 **result.summary(), "of_plain": seconds / result.seconds, "bound": plain.bound,
                 "of_bound": plain.bound / result.seconds}
            )  # fmt: skip
    return table


def table_text(table: list[dict[str, Any]]) -> str:
    """Returns steps per second, and their part of those of plain processes and of the bound."""
    lines = []
    for row in table:
        added = row["seconds"] * (1 - row["of_plain"])
        lines.append(
            [row["model"], row["processes"], "ringar" if row["ringar"] else "plain Keras",
             *report.spread(row), f"{1 / row['seconds']:.4g}",
             f"{added * 1e6:+.0f} us" if row["ringar"] else "", f"{row['of_plain']:.1%}",
             report.time_text(row["bound"]), f"{row['of_bound']:.1%}", row["wrong"]]
        )  # fmt: skip
    headers = ["model", "processes", "with", "step", "min", "max", "steps/s", "added",
               "of plain side by side", "bound of a step", "of the bound", "#wrong"]  # fmt: skip
    return report.table(headers, lines)


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("benchmarks.overhead", __doc__)
    parser.add_argument("--models", default="mlp,small_cnn", help="of %(default)s")
    parser.add_argument("--ranks", default="1,2,4", help="processes (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs per round")
    options = parser.parse_args(arguments)
    case_list = cases(options.models.split(","), [int(n) for n in options.ranks.split(",")])
    outcome = collect(case_list, options.rounds, options.epochs)
    table, reasons = rows(outcome), failures(outcome)
    host = machine.describe()
    print(f"# training steps: {machine.headline(host)}")
    print(table_text(table))
    print(report.missing_lines(reasons), end="")
    data = {"tried": {"cases": list(map(title, case_list))}, "rows": table, "missing": reasons}
    results.keep("overhead", host, data, options.output)
    return 1 if reasons or any(row["wrong"] for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
