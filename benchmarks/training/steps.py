"""Training steps with ringar beside plain ones, taken in turns: the jobs and their figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.harness import report
from benchmarks.harness.jobs import Reports, run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.series import slowest

COUNTS = {"mlp": 1500, "digits": 150, "small_cnn": 100, "resnet20": 30, "alexnet": 4, "resnet50": 3}
"""Steps of a turn: about a second's worth."""

LIMIT = 300.0
"""Seconds that a job may take."""

Case = tuple[str, str, int]
"""Model, way to train ("fit" or "loop"), ranks."""

Row = dict[str, Any]


def cases(models: Sequence[str], ways: Sequence[str], ranks: Sequence[int]) -> list[Case]:
    """Returns every model in every way on every number of ranks."""
    return [(model, way, n) for model in models for way in ways for n in ranks]


def title(case: Case) -> str:
    """Returns a case in words."""
    model, way, ranks = case
    return f"{model}, {way}, {ranks} ranks"


def collect(case_list: Sequence[Case], turns: int) -> tuple[list[Row], dict[str, str]]:
    """Measures all cases; returns a row for each, and for those that failed the reasons."""
    rows, reasons = [], {}
    for case in case_list:
        model, way, ranks = case
        print(title(case), file=sys.stderr)
        options = {"model": model, "way": way, "turns": turns, "steps": COUNTS[model]}
        try:
            reports = run_worker("benchmarks.training.step_worker", options, ranks, deadline=LIMIT)
        except JobFailedError as error:
            reasons[title(case)] = str(error)
        else:
            rows.append({"model": model, "way": way, "processes": ranks, **figures(reports)})
    return rows, reasons


def figures(reports: Reports) -> Row:
    """Returns the medians, least and greatest over the turns of what the ranks have reported.

    `seconds`, `plain` and `bound` are seconds of a step: with ringar, of the slowest plain process,
    and of processes that wait for each other in each step, which is the mean of the longest of the
    plain processes' steps, step by step. `of_plain` and `of_bound` are the ratios of a turn's
    steps/s to those of its neighbour.
    """
    plain, ringar = (
        slowest([fmean(steps) for steps in r[name]] for r in reports)
        for name in ("plain", "ringar")
    )
    by_turn = zip(*(r["plain"] for r in reports), strict=True)
    bound = [fmean(slowest(steps)) for steps in by_turn]
    figures = {
        "seconds": ringar,
        "plain": plain,
        "bound": bound,
        "of_plain": [p / r for p, r in zip(plain, ringar, strict=True)],
        "of_bound": [b / r for b, r in zip(bound, ringar, strict=True)],
    }
    row: Row = {name: median(values) for name, values in figures.items()}
    for name, prefix in (("seconds", ""), ("of_plain", "of_plain_"), ("of_bound", "of_bound_")):
        row[f"{prefix}min"], row[f"{prefix}max"] = min(figures[name]), max(figures[name])
    return {**row, "wrong": sum(r["wrong"] for r in reports)}


def table_text(rows: list[Row]) -> str:
    """Returns the steps with ringar beside the plain ones and the bound."""

    def part(row: Row, name: str) -> str:
        return f"{row[name]:.1%} ({row[f'{name}_min']:.1%} to {row[f'{name}_max']:.1%})"

    lines = [
        [row["model"], row["way"], row["processes"], *report.spread(row),
         report.time_text(row["plain"]), report.time_text(row["bound"]),
         part(row, "of_plain"), part(row, "of_bound"), row["wrong"]]
        for row in rows
    ]  # fmt: skip
    headers = ["model", "way", "ranks", "step", "min", "max", "plain", "bound", "steps/s, of plain",
               "of the bound", "#wrong"]  # fmt: skip
    return report.table(headers, lines)
