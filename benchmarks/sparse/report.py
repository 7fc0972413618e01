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
    """Rows, and the reasons of those that are missing."""

    words: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    speed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By plan."""
    missing: dict[str, str] = field(default_factory=dict)


def summary(plan: Plan, turns: list[Reports], batch: int) -> dict[str, Any]:
    """Returns the row of a plan: times of the slowest rank, bytes of all."""
    series = Series([slowest(one["rounds"][0] for one in turn) for turn in turns])
    last = turns[-1]
    sent = {kind: sum(one["sent"][kind] for one in last) for kind in last[0]["sent"]}
    return {
        "title": plan.title, "ranks": plan.ranks, "threads": plan.threads, **series.summary(),
        "examples": batch / series.seconds, "words": last[0]["words"], "sent": sent,
        "memory": max(one["memory"] for one in last), "losses": last[0]["losses"],
        "nonzeros": sum(one["nonzeros"] for one in last),
    }  # fmt: skip


def wrong(found: Measured, batch: int) -> int:
    """Counts losses that are not those of one process, and bytes that are not km1 words."""
    count = 0
    one = next((row for row in found.speed.values() if row["ranks"] == 1), None)
    for row in found.speed.values():
        expected = row["words"] * batch * 4
        count += sum(abs(row["sent"][kind] - expected) > 0.5 for kind in ("states", "gradients"))
        if one is not None:
            pairs = zip(row["losses"], one["losses"], strict=True)
            # So written, NaN is wrong, too.
            count += sum(not abs(a - b) <= TOLERANCE * abs(b) for a, b in pairs)
    return count


def targets(found: Measured) -> list[Target]:
    """Returns all targets, those without measurements included."""
    of_communities = [
        100 * row["hypergraph"] / row["random"]
        for row in found.words if row["net"] == nets.NAMES[0]
    ]  # fmt: skip
    rows = found.speed
    has_both = {"one", "hypergraph"} <= set(rows)
    ratio = rows["one"]["seconds"] / rows["hypergraph"]["seconds"] if has_both else NAN
    return [
        Target("communities: words by hypergraph, of random placement", 10, "%",
               of_communities or [NAN], at_most=True),
        Target("two ranks over one, planted communities", 1.6, "x", [ratio]),
    ]  # fmt: skip


def words_text(found: Measured) -> str:
    """Returns the table of words per example."""
    if not found.words:
        return ""
    headers = ["net", "ranks", *nets.METHODS, "hypergraph / random", "imbalance", "partitioned in"]
    lines = [
        [row["net"], row["ranks"], *(f"{row[method]:,}" for method in nets.METHODS),
         f"{row['hypergraph'] / row['random']:.0%}", f"{row['hypergraph imbalance']:.1%}",
         report.time_text(row["hypergraph seconds"])]
        for row in found.words
    ]  # fmt: skip
    return report.table(headers, lines)


def kernels_text(found: Measured) -> str:
    """Returns the table of kernels, in Gflop/s: a product has 2, the gradients 4 per weight."""
    if not found.kernels:
        return ""

    def rate(row: dict[str, Any], key: str, flops: int) -> str:
        return f"{flops * row['nonzeros'] * row['batch'] / row[key] / 1e9:.1f}"

    lines = [
        [row["batch"], *(rate(row, key, 2) for key in ("native", "scipy")),
         *(rate(row, f"{key} gradient", 4) for key in ("native", "scipy"))]
        for row in found.kernels
    ]  # fmt: skip
    headers = ["batch", "product, Gflop/s", "SciPy", "gradients, Gflop/s", "SciPy and NumPy"]
    return report.table(headers, lines)


def speed_text(found: Measured) -> str:
    """Returns the table of training steps."""
    if not found.speed:
        return ""
    one = found.speed.get("one")
    lines = [
        [row["title"], *report.spread(row),
         f"{one['seconds'] / row['seconds']:.2f}" if one else "",
         f"{row['words']:,}", report.size_text(int(row["sent"]["states"])),
         report.size_text(int(row["sent"]["outputs"])), report.size_text(row["memory"])]
        for row in found.speed.values()
    ]  # fmt: skip
    headers = ["plan", "step", "min", "max", "over one", "words per example",
               "states sent per step", "outputs", "memory per rank"]  # fmt: skip
    return report.table(headers, lines)
