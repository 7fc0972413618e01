"""The plans of `benchmarks.sparse`, and its rows, checks, targets and tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import report
from benchmarks.harness.jobs import Reports
from benchmarks.harness.series import Series, slowest
from benchmarks.harness.targets import Target
from benchmarks.sparse import nets

TOLERANCE = 1e-4
"""Relative, of losses: some steps in float32, summed in another order."""
NAN = float("nan")


@dataclass(frozen=True)
class Plan:
    """One way to train."""

    title: str
    ranks: int = 2
    threads: int = 1
    method: str = ""
    kernel: str = "native"


def plans() -> dict[str, Plan]:
    """Returns all plans, by name."""
    return {
        "one": Plan("one rank, one thread", 1),
        "threads": Plan("one rank, two threads", 1, 2),
        "scipy": Plan("one rank, SciPy", 1, kernel="scipy"),
        "hypergraph": Plan("two ranks, by hypergraph", method="hypergraph"),
        "random": Plan("two ranks, at random", method="random"),
    }


@dataclass
class Measured:
    """Rows, and the reasons of missing ones."""

    words: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    speed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By plan."""
    reasons: dict[str, str] = field(default_factory=dict)


def summary(plan: Plan, turns: list[Reports], batch: int) -> dict[str, Any]:
    """Returns the row of a plan: times of the slowest rank, bytes of all."""
    series = Series([slowest(r["rounds"][0] for r in turn) for turn in turns])
    last = turns[-1]
    volumes = {kind: sum(r["sent"][kind] for r in last) for kind in last[0]["sent"]}
    return {
        "title": plan.title, "ranks": plan.ranks, "threads": plan.threads, **series.summary(),
        "examples": batch / series.seconds, "words": last[0]["words"], "sent": volumes,
        "memory": max(r["memory"] for r in last), "losses": last[0]["losses"],
        "nonzeros": sum(r["nonzeros"] for r in last),
    }  # fmt: skip


def count_errors(outcome: Measured, batch: int) -> int:
    """Counts losses that are not those of one process, and bytes that are not km1 words."""
    count = 0
    base = next((row for row in outcome.speed.values() if row["ranks"] == 1), None)
    for row in outcome.speed.values():
        expected = row["words"] * batch * 4
        count += sum(abs(row["sent"][kind] - expected) > 0.5 for kind in ("states", "gradients"))
        if base is not None:
            pairs = zip(row["losses"], base["losses"], strict=True)
            # So written, NaN is wrong, too.
            count += sum(not abs(a - b) <= TOLERANCE * abs(b) for a, b in pairs)
    return count


def targets(outcome: Measured) -> list[Target]:
    """Returns all targets, those without measurements included."""
    of_communities = [
        100 * row["hypergraph"] / row["random"]
        for row in outcome.words if row["net"] == nets.NAMES[0]
    ]  # fmt: skip
    rows = outcome.speed
    has_both = {"one", "hypergraph"} <= set(rows)
    ratio = rows["one"]["seconds"] / rows["hypergraph"]["seconds"] if has_both else NAN
    return [
        Target("communities: words by hypergraph, of random placement", 10, "%",
               of_communities or [NAN], at_most=True),
        Target("two ranks over one, planted communities", 1.6, "x", [ratio]),
    ]  # fmt: skip


def words_text(outcome: Measured) -> str:
    """Returns the table of words per example."""
    if not outcome.words:
        return ""
    headers = ["net", "ranks", *nets.METHODS, "hypergraph / random", "imbalance", "partitioned in"]
    lines = [
        [row["net"], row["ranks"], *(f"{row[method]:,}" for method in nets.METHODS),
         f"{row['hypergraph'] / row['random']:.0%}", f"{row['hypergraph imbalance']:.1%}",
         report.time_text(row["hypergraph seconds"])]
        for row in outcome.words
    ]  # fmt: skip
    return report.table(headers, lines)


def kernels_text(outcome: Measured) -> str:
    """Returns the table of kernels, in Gflop/s: a product has 2, the gradients 4 per weight."""
    if not outcome.kernels:
        return ""

    def rate(row: dict[str, Any], key: str, flops: int) -> str:
        return f"{flops * row['nonzeros'] * row['batch'] / row[key] / 1e9:.1f}"

    lines = [
        [row["batch"], *(rate(row, key, 2) for key in ("native", "scipy")),
         *(rate(row, f"{key} gradient", 4) for key in ("native", "scipy"))]
        for row in outcome.kernels
    ]  # fmt: skip
    headers = ["batch", "product, Gflop/s", "SciPy", "gradients, Gflop/s", "SciPy and NumPy"]
    return report.table(headers, lines)


def speed_text(outcome: Measured) -> str:
    """Returns the table of training steps."""
    if not outcome.speed:
        return ""
    base = outcome.speed.get("one")
    lines = [
        [row["title"], *report.spread(row),
         f"{base['seconds'] / row['seconds']:.2f}" if base else "",
         f"{row['words']:,}", report.size_text(int(row["sent"]["states"])),
         report.size_text(int(row["sent"]["outputs"])), report.size_text(row["memory"])]
        for row in outcome.speed.values()
    ]  # fmt: skip
    headers = ["plan", "step", "min", "max", "over one", "words per example",
               "states sent per step", "outputs", "memory per rank"]  # fmt: skip
    return report.table(headers, lines)
