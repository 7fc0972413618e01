"""How many bytes do local and full connections send on cut images, and what fits where?

    python -m benchmarks.partitioned --output build/partitioned
    python -m benchmarks.partitioned --rounds 1 --steps 2 --small
    python -m benchmarks.partitioned --skip large,memory --output build/partitioned

Dean et al. (2012) cut nets over machines, and found that locally connected ones gain most. Nets of
three kinds have the same activations: convolutions with common kernels, local connections with
weights of their own at each pixel, and dense layers, split over the ranks. Each trains on 1, 2 and
4 ranks with one thread each; a step of 4 ranks on fewer cores tells of their traffic only. Then
images train whose activations exceed what one process may take (RLIMIT_DATA), on one rank and on
two. Losses must be those of one rank, and bytes those of the formulas in docs/partitioned.md. Exits
with 1 if they are not, or if a job failed that should not.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import command, launch, machine, report, results
from benchmarks.harness.jobs import Reports, run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.series import Series, slowest

KINDS, RANKS, LIMIT = ("convolution", "local", "dense"), (1, 2, 4), 300.0
TOLERANCE = 1e-4
"""Relative, of losses."""
EQUAL = {"side": 32, "channels": 4, "layers": 3, "kernel": 5, "batch": 16}
"""Nets of 4096 activations per layer, the most that dense layers allow."""
LARGE = {"side": 192, "channels": 16, "layers": 3, "kernel": 5, "batch": 4}
"""Nets whose computation outweighs the cost of calls."""
HUGE = {"kind": "convolution", "side": 1536, "channels": 16, "colors": 3, "layers": 4,
        "kernel": 3, "batch": 1, "rounds": 1, "steps": 1}  # fmt: skip
MEMORY = 1400 * report.MIB
"""What a process may take beyond what it has, to train `HUGE`."""


@dataclass
class Measured:
    """The rows, and the faults of results."""

    equal: list[dict[str, Any]] = field(default_factory=list)
    large: list[dict[str, Any]] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)


def summary(kind: str, ranks: int, reports: Reports) -> dict[str, Any]:
    """Returns the row of a net on so many ranks."""
    series = Series([slowest(r["rounds"][i] for r in reports)
                     for i in range(len(reports[0]["rounds"]))])  # fmt: skip
    layers = [
        sum(count for name, count in r["bytes"].items() if name.startswith("layer"))
        for r in reports
    ]
    return {
        "kind": kind,
        "ranks": ranks,
        **series.summary(),
        "bytes": max(layers),
        "gradients": max(r["bytes"].get("gradients", 0) for r in reports),
        "parameters": max(r["parameters"] for r in reports),
        "losses": reports[0]["losses"],
        "wrong_bytes": sorted({name for r in reports for name in r["wrong_bytes"]}),
    }


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the faults of rows: losses other than those of one rank, and wrong bytes."""
    lines = []
    ones = {row["kind"]: row for row in rows if row["ranks"] == 1}
    for row in rows:
        title = f"{row['kind']}, {row['ranks']} ranks"
        pairs = zip(row["losses"], ones[row["kind"]]["losses"], strict=True)
        if any(abs(loss - expected) > TOLERANCE * abs(expected) for loss, expected in pairs):
            lines.append(f"{title}: losses {row['losses']}")
        if row["wrong_bytes"]:
            lines.append(f"{title}: bytes of {', '.join(row['wrong_bytes'])}")
    return lines


def compare(outcome: Measured, into: list[dict[str, Any]], kinds: tuple[str, ...],
            sizes: dict[str, Any], job: dict[str, Any]) -> None:  # fmt: skip
    """Measures nets of some kinds on all numbers of ranks."""
    for kind in kinds:
        for ranks in RANKS:
            print(f"{kind}, {ranks} ranks", file=sys.stderr, flush=True)
            options = {**sizes, **job, "kind": kind}
            try:
                reports = run_worker("benchmarks.partitioned.worker", options, ranks,
                                     deadline=LIMIT)  # fmt: skip
            except JobFailedError as error:
                outcome.reasons[f"{kind}, {ranks} ranks"] = str(error)
                break
            into.append(summary(kind, ranks, reports))
    outcome.faults += faults([row for row in into if row["kind"] in kinds])


def try_memory(outcome: Measured, huge: dict[str, Any], limit: int) -> None:
    """Trains on images for which one process has not enough memory, on one rank and on two."""
    for ranks in (1, 2):
        print(f"memory, {ranks} ranks", file=sys.stderr, flush=True)
        row: dict[str, Any] = {"ranks": ranks, "limit": limit, "error": ""}
        try:
            reports = run_worker("benchmarks.partitioned.worker", {**huge, "limit": limit}, ranks,
                                 deadline=LIMIT, command=launch.ringarrun)  # fmt: skip
            row |= {"memory": max(r["memory"] for r in reports),
                    "error": next((r["error"] for r in reports if r["error"]), "")}  # fmt: skip
        except JobFailedError as error:  # where memory ends outside of TensorFlow's allocator
            row["error"] = str(error).strip().splitlines()[-1][:200]
        outcome.memory.append(row)
    one_rank, two_ranks = outcome.memory
    if not one_rank["error"]:
        outcome.faults.append("memory: one rank trained within the limit")
    if two_ranks["error"]:
        outcome.faults.append(
            f"memory: two ranks did not train within the limit: {two_ranks['error']}"
        )


def rows_text(rows: list[dict[str, Any]]) -> str:
    """Returns the table of nets."""
    ones = {row["kind"]: row["seconds"] for row in rows if row["ranks"] == 1}
    lines = [
        [row["kind"], row["ranks"], *report.spread(row),
         f"{ones[row['kind']] / row['seconds']:.2f}",
         report.size_text(int(row["bytes"])), report.size_text(int(row["gradients"])),
         f"{row['parameters']:,}"]
        for row in rows
    ]  # fmt: skip
    return report.table(["layers", "ranks", "step", "min", "max", "speedup",
                         "sent by layers", "gradients", "parameters per rank"], lines)  # fmt: skip


def memory_text(rows: list[dict[str, Any]]) -> str:
    """Returns the table of what fits."""
    lines = [
        [row["ranks"], report.size_text(row["limit"]),
         "fails: out of memory" if row["error"] else "trains",
         report.size_text(row["memory"]) if not row["error"] else ""]
        for row in rows
    ]  # fmt: skip
    return report.table(["ranks", "may take", "", "has taken"], lines)


def parser() -> argparse.ArgumentParser:
    result = command.parser("benchmarks.partitioned", __doc__)
    add = result.add_argument
    add("--rounds", type=int, default=3, help="(default %(default)s)")
    add("--steps", type=int, default=10, help="steps per round (default %(default)s)")
    add("--skip", default="", help="equal, large, memory: leave these tables out")
    add("--small", action="store_true", help="small nets only, to see that all works")
    return result


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    outcome, job = Measured(), {"rounds": options.rounds, "steps": options.steps}
    equal = {**EQUAL, "side": 16} if options.small else EQUAL
    skipped = set(options.skip.split(",")) | ({"large", "memory"} if options.small else set())
    if "equal" not in skipped:
        compare(outcome, outcome.equal, KINDS, equal, job)
    if "large" not in skipped:
        compare(outcome, outcome.large, KINDS[:2], LARGE, job)
    if "memory" not in skipped:
        try_memory(outcome, HUGE, MEMORY)
    host = machine.describe()
    print(f"# Images that are cut, {machine.headline(host)}\n")
    units = equal["side"] ** 2 * equal["channels"]
    if outcome.equal:
        print(f"Three layers of {units} activations, {equal['batch']} images:\n")
        print(rows_text(outcome.equal) + "\n")
    if outcome.large:
        print(f"{LARGE['side']} x {LARGE['side']} pixels of {LARGE['channels']} channels, "
              f"{LARGE['batch']} images:\n\n{rows_text(outcome.large)}\n")  # fmt: skip
    if outcome.memory:
        print(f"One image of {HUGE['side']} x {HUGE['side']} pixels, {HUGE['layers']} convolutions "
              f"of {HUGE['channels']} channels:\n\n{memory_text(outcome.memory)}\n")  # fmt: skip
    print(report.missing_lines(outcome.reasons), end="")
    data = {"tried": {"ranks": list(RANKS)}, "missing": outcome.reasons, "job": job,
            "equal": outcome.equal, "large": outcome.large, "memory": outcome.memory}  # fmt: skip
    if options.output:
        report.write_json(options.output, data)
    if skipped <= {""}:
        results.keep("partitioned", host, data, options.output)
    for line in outcome.faults:
        print(line, file=sys.stderr)
    return 1 if outcome.faults or outcome.reasons else 0


if __name__ == "__main__":
    sys.exit(main())
