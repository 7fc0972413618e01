"""What does ringar add to a training step?

    python -m benchmarks.overhead
    python -m benchmarks.overhead --models mlp --ranks 1,2 --rounds 5

Trains under ``fit``, with one TensorFlow thread per process and in turn: one plain Keras process,
as many plain processes side by side as there are ranks (they share the machine and nothing else:
what no library can beat), and ringar. A step is one batch per rank. The weights of all ranks are
compared after each run; a difference makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import jobs, launch, machine, report
from benchmarks.models import MODELS

STEPS = {"mlp": 2000, "small_cnn": 100}


def train(model: str, ranks: int, with_ringar: bool, epochs: int) -> dict[str, Any]:
    """Seconds per step of the slowest rank, one value per epoch, and wrong weights."""
    steps = STEPS[model]
    start = launch.ringarrun if with_ringar else launch.plain
    with tempfile.TemporaryDirectory() as folder:
        options = {"model": model, "ringar": with_ringar, "steps": steps, "epochs": epochs}
        program = ["-m", "benchmarks.fit_worker", json.dumps({**options, "folder": folder})]
        jobs.run_command(start(Path("no environment"), ranks, program), deadline=600)
        reports = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    slowest = [max(r["seconds"][i] for r in reports) / steps for i in range(epochs)]
    return {"steps": slowest, "wrong": sum(r["wrong"] for r in reports)}


def cases(ranks: list[int]) -> list[tuple[int, bool]]:
    """(processes, with ringar), plain ones first."""
    return [(n, with_ringar) for n in ranks for with_ringar in (False, True)]


def collect(model: str, ranks: list[int], rounds: int, epochs: int) -> list[dict[str, Any]]:
    """Measures all cases in turn, ``rounds`` times."""
    found: dict[tuple[int, bool], list[dict[str, Any]]] = {case: [] for case in cases(ranks)}
    for number in range(rounds):
        for case in found:
            what = "ringar" if case[1] else "plain"
            print(f"{model}, round {number + 1} of {rounds}: {case[0]} x {what}", file=sys.stderr)
            found[case].append(train(model, *case, epochs))
    rows = []
    for (n, with_ringar), results in found.items():
        medians = [median(result["steps"]) for result in results]
        rows.append(
            {"model": model, "ranks": n, "ringar": with_ringar, "seconds": median(medians),
             "min": min(medians), "max": max(medians),
             "wrong": sum(result["wrong"] for result in results)}
        )  # fmt: skip
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """Steps per second, and what part of as many plain processes' that is."""
    plain = {(row["model"], row["ranks"]): row["seconds"] for row in rows if not row["ringar"]}
    lines = []
    for row in rows:
        bound = plain[row["model"], row["ranks"]]
        added = f"{(row['seconds'] - bound) * 1e6:+.0f} us" if row["ringar"] else ""
        lines.append(
            [row["model"], row["ranks"], "ringar" if row["ringar"] else "plain Keras"]
            + [report.time_text(row[key]) for key in ("seconds", "min", "max")]
            + [f"{1 / row['seconds']:.4g}", added, f"{bound / row['seconds']:.1%}", row["wrong"]]
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
    parser.add_argument("--models", default=",".join(MODELS), help="of %(default)s")
    parser.add_argument("--ranks", default="1,2", help="processes (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs per round")
    parser.add_argument("--output", default=None, help="writes OUTPUT.json")
    options = parser.parse_args(arguments)
    ranks = [int(n) for n in options.ranks.split(",")]
    rows = []
    for model in options.models.split(","):
        rows += collect(model, ranks, options.rounds, options.epochs)
    here = machine.describe()
    print(f"# training steps: {machine.headline(here)}")
    print_table(rows)
    if options.output:
        report.write_json(options.output, {"machine": here, "rows": rows})
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
