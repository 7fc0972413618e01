"""The rows, the targets and the table of `benchmarks.wavefront`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.harness import report
from benchmarks.harness.jobs import Reports
from benchmarks.harness.targets import Target
from benchmarks.wavefront.worker import REFERENCE, TOLERANCE

GAIN = 1.6
"""The target of two ranks, over one rank with the same kernels."""
NO_SLOWER = 0.95
"""The target of the automatic choice over layer by layer, with a margin for noise."""


@dataclass(frozen=True)
class Way:
    """A way to run the stack: its ranks, the threads of each, and whether it is in chunks."""

    title: str
    ranks: int
    threads: int


def ways(ranks: int) -> dict[str, Way]:
    """Returns all ways, by name; the first one is what the others are compared to."""
    return {
        "one": Way("one thread", 1, 1),
        "ranks": Way(f"{ranks} ranks", ranks, 1),
        "threads": Way(f"one process, {ranks} threads", 1, ranks),
    }


def seconds_of(reports: Reports, case: str) -> list[float]:
    """Returns the seconds of a step in each round, of the slowest rank."""
    return [max(times) for times in zip(*(r["seconds"][case] for r in reports), strict=True)]


def rows(batch: int, steps: int, by_way: dict[str, Reports], ranks: int) -> list[dict[str, Any]]:
    """Returns a row for each case, in order.

    Args:
        batch: the sequences of a step.
        steps: their length.
        by_way: the reports of the job of each way.
        ranks: P of the model S.
    """
    base = median(seconds_of(by_way["one"], REFERENCE)) if "one" in by_way else math.nan
    table = []
    for name, reports in by_way.items():
        plain = {case: seconds_of(reports, case) for case in reports[0]["seconds"]}
        for case, seconds in plain.items():
            chunk = reports[0]["plans"].get(case, {}).get("chunk", 0)
            chunk = int(case) if case.isdigit() else chunk
            model = ranks * steps / (steps + (ranks - 1) * chunk) if chunk else math.nan
            table.append({
                "batch": batch, "way": name, "case": case, "chunk": chunk, "model": model,
                "seconds": median(seconds), "min": min(seconds), "max": max(seconds),
                "times": base / median(seconds),
            })  # fmt: skip
    return table


def text(table: list[dict[str, Any]], ranks: int) -> str:
    """Returns the table, with the model beside the figures."""
    titles = {name: way.title for name, way in ways(ranks).items()}
    lines = [
        [row["batch"], titles[row["way"]], case_text(row), *report.spread(row),
         f"{row['times']:.2f}x", "" if math.isnan(row["model"]) else f"{row['model']:.2f}x"]
        for row in table
    ]  # fmt: skip
    headers = ["batch", "where", "chunk", "step", "min", "max", "over one thread", "model S"]
    return report.table(headers, lines)


def case_text(row: dict[str, Any]) -> str:
    """Returns the chunk of a row."""
    if row["case"] == REFERENCE:
        return "layer by layer"
    if row["case"] == "auto":
        return f"auto: {row['chunk'] or 'layer by layer'}"
    return str(row["chunk"])


def targets(table: list[dict[str, Any]], ranks: int) -> list[Target]:
    """Returns the targets, of the greatest batch, and of all for the automatic choice."""
    goals = []
    autos = [row for row in table if row["case"] == "auto"]
    if ranks == 2:
        best = [row["times"] for row in autos if row["way"] == "ranks"]
        goals.append(Target("two ranks, automatic chunk, over one rank, greatest batch", GAIN, "x",
                            best[-1:] or [math.nan]))  # fmt: skip
    for name, plain in (("ranks", "one"), ("threads", "threads")):
        layers = {row["batch"]: row["seconds"] for row in table
                  if (row["way"], row["case"]) == (plain, REFERENCE)}  # fmt: skip
        gains = [layers.get(row["batch"], math.nan) / row["seconds"]
                 for row in autos if row["way"] == name]  # fmt: skip
        if gains:
            title = f"automatic choice over layer by layer, {ways(ranks)[name].title}"
            goals.append(Target(title, NO_SLOWER, "x", gains))
    return goals


def faults(by_way: dict[str, Reports]) -> list[str]:
    """Returns the cases whose loss or gradients are not those of layer by layer."""
    return [
        f"{name}, {case}: differs by {error:.1e}"
        for name, reports in by_way.items()
        for r in reports
        for case, error in r["errors"].items()
        if not error <= TOLERANCE  # so written, NaN is wrong, too
    ]
