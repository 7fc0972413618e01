"""The plans of `benchmarks.pipeline`, and their rows, targets and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.harness import report
from benchmarks.harness.jobs import Reports
from benchmarks.harness.series import Series
from benchmarks.harness.targets import Target
from benchmarks.pipeline.worker import SCHEDULES

TARGETS = {"delayed": 1.38, "decoupled": 1.80}
"""Of two modules, over one thread."""
PUBLISHED = {("delayed", 2): 1.37, ("delayed", 3): 1.57,
             ("decoupled", 2): 1.85, ("decoupled", 3): 2.45}  # fmt: skip
"""Over one device, by schedule and modules: Huo et al. (2018) with WideResNet-28-10, and Zhuang et
al. (2019); see ringar/parallel/pipeline/schedule.py."""


@dataclass(frozen=True)
class Plan:
    """One way to train."""

    title: str
    ranks: int = 1
    threads: int = 1


def plans(ranks: int) -> dict[str, Plan]:
    """Returns all plans for so many ranks, by name."""
    return {
        "one": Plan("one process, one thread"),
        "threads": Plan(f"one process, {ranks} threads", threads=ranks),
        "data-parallel": Plan("data-parallel", ranks),
        **{schedule: Plan(f"modules, {schedule}", ranks) for schedule in SCHEDULES},
    }


@dataclass
class Measured:
    """The reports of all jobs, and the reasons of missing ones."""

    turns: dict[str, list[Reports]] = field(default_factory=dict)
    """By plan, a job per round."""
    references: dict[str, list[float]] = field(default_factory=dict)
    """Losses, by the schedule whose update rule makes them; "one": without delay."""
    cuts: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)


def step_seconds(turn: Reports) -> float:
    """Returns the seconds of a step of the slowest rank."""
    return float(max(r["seconds"] for r in turn))


def timeline(turn: Reports) -> list[list[dict[str, Any]]]:
    """Returns the events of each rank, in seconds since all ranks were in their timed steps."""
    origin = max(r["begin"] for r in turn)

    def since(event: dict[str, Any]) -> dict[str, Any]:
        return {**event, **{key: round(event[key] - origin, 6) for key in ("begin", "end")}}

    return [[since(event) for event in r["events"]] for r in turn]


def summary(name: str, plan: Plan, turns: list[Reports], baseline: list[Reports],
            batch: int) -> dict[str, Any]:  # fmt: skip
    """Returns a plan's row as plain data; lists have a figure per rank."""
    ranks = range(plan.ranks)
    series = Series([[step_seconds(turn)] for turn in turns])
    ratios = [step_seconds(base) / step_seconds(turn)
              for base, turn in zip(baseline, turns, strict=False)]  # fmt: skip
    middle = sorted(turns, key=step_seconds)[len(turns) // 2]
    row = {
        "plan": name,
        "title": plan.title,
        "ranks": plan.ranks,
        **series.summary(),
        "images": batch / series.seconds,
        "times": median(ratios) if ratios else math.nan,
        "times_min": min(ratios, default=math.nan),
        "times_max": max(ratios, default=math.nan),
        "memory": [max(turn[r]["memory"] for turn in turns) for r in ranks],
        "bytes": [max(turn[r]["bytes"] for turn in turns) for r in ranks],
        "losses": turns[0][0]["losses"],
    }
    if name in SCHEDULES:
        for kind in ("wait", "forward", "backward"):
            shares = [[turn[r]["shares"].get(kind, 0.0) for turn in turns] for r in ranks]
            row[kind] = [median(share) for share in shares]
        row["timeline"] = timeline(middle)
    return row


def rows(outcome: Measured, chosen: dict[str, Plan], batch: int) -> dict[str, dict[str, Any]]:
    """Returns the rows by plan, of those that were measured."""
    baseline = outcome.turns.get("one", [])
    return {name: summary(name, chosen[name], turns, baseline, batch)
            for name, turns in outcome.turns.items() if turns}  # fmt: skip


def targets(table: dict[str, dict[str, Any]], ranks: int) -> list[Target]:
    """Returns the targets of two modules, those without measurements included."""
    if ranks != 2:
        return []
    return [
        Target(f"{schedule}, two modules over one thread", bound, "x",
               [table[schedule]["times"] if schedule in table else math.nan])
        for schedule, bound in TARGETS.items()
    ]  # fmt: skip


def rows_text(table: dict[str, dict[str, Any]]) -> str:
    """Returns the table of all plans."""
    headers = ["plan", "ranks", "step", "min", "max", "images/s", "over one thread",
               "memory per rank", "idle per rank", "sent per step by rank"]  # fmt: skip
    lines = [
        [row["title"], row["ranks"],
         *report.spread(row),
         f"{row['images']:.4g}",
         f"{row['times']:.2f}x ({row['times_min']:.2f} to {row['times_max']:.2f})",
         text_of_ranks(row["memory"], size_text),
         text_of_ranks(row["wait"], "{:.0%}".format) if "wait" in row else "",
         text_of_ranks(row["bytes"], size_text) if row["ranks"] > 1 else ""]
        for row in table.values()
    ]  # fmt: skip
    return report.table(headers, lines)


def text_of_ranks(figures: Sequence[float], text: Any) -> str:
    """Returns the figures of all ranks as text."""
    return ", ".join(text(figure) for figure in figures)


def size_text(size: float) -> str:
    return report.size_text(int(size))


def published_text(ranks: int) -> str:
    """Returns published gains, and the most that the paper's schedule allows."""
    gains = [f"{schedule} {times:g}x" for (schedule, modules), times in PUBLISHED.items()
             if modules == ranks]  # fmt: skip
    # The backward pass takes two thirds of a step and is divided, the forward pass is not.
    ideal = 1 / (1 / 3 + 2 / 3 / ranks)
    text = f"With the forward pass locked, as in its paper, delayed gives {ideal:.2f}x at most"
    return f"{text}; published: {', '.join(gains)}." if gains else f"{text}."
