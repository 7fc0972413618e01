"""Everything that fits into a quarter of an hour, with a report: `python -m benchmarks`.

Writes to benchmarks/results/: report.md with the tables, the targets beside what was measured, and
the pictures, and a JSON file per question. The report names what fails, and the rest goes on. Exits
with 1 if a result was wrong or a training job failed. The report says which targets were missed;
they change no exit code, since machines differ.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.collectives import report as collective_report
from benchmarks.collectives.__main__ import DEFAULT_PEERS, DEFAULT_SIZES
from benchmarks.collectives.measure import collect
from benchmarks.collectives.plot import plot
from benchmarks.harness import machine, report
from benchmarks.harness import targets as bounds
from benchmarks.harness.command import parse_size
from benchmarks.harness.definitions import DEFINITIONS
from benchmarks.harness.report import KIB, MIB
from benchmarks.peers.ringar_group import RESNET50_BYTES
from benchmarks.targets import Figures, targets
from benchmarks.training import __main__ as overhead
from benchmarks.training import jobs, scaling
from benchmarks.training.plot import plot_scaling

RESULTS = machine.ROOT / "benchmarks" / "results"
SIZES = [parse_size(size) for size in DEFAULT_SIZES]
FEW_SIZES = [4 * KIB, MIB, 64 * MIB]
COMPARISONS = (
    ("allreduce", "allreduce", 2, SIZES, list(DEFAULT_PEERS)),
    ("allreduce-group", "allreduce", 2, [RESNET50_BYTES], ["ringar_engine", "ringar_group"]),
    ("allreduce-4-ranks", "allreduce", 4, [64 * MIB], ["ringar_engine", "openmpi", "mpich"]),
    ("allreduce-slow-peers", "allreduce", 2, FEW_SIZES,
     ["ringar_engine", "gloo", "tensorflow_collectives", "horovod"]),
)  # fmt: skip
"""Title, collective, ranks, sizes, peers. Slow peers get few sizes, for the time they take."""
HEADINGS = {
    "allreduce-group": "allreduce, the gradients of ResNet-50 on 2 ranks",
    "allreduce-slow-peers": "allreduce, 2 ranks, against Gloo, TensorFlow and Horovod",
}
OTHERS = ("allgather", "reducescatter", "broadcast", "alltoall")
BUDGET_BYTES, LIMIT = 1 << 30, 120.0


class Report:
    """Collects the sections of the report, and whether a result was wrong."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.figures = Figures()
        self.sections: list[str] = []
        self.failed = False

    def add(
        self, title: str, heading: str, table: str, data: dict[str, Any], has_picture: bool
    ) -> None:
        """Writes the JSON file and keeps the section."""
        data = {"machine": machine.describe(), **data}
        report.write_json(str(RESULTS / title), data)
        picture = f"\n![{heading}]({title}.png)\n" if has_picture else ""
        missing = report.missing_lines(data["missing"]).replace("\n", "\n\n")
        self.sections.append(f"\n## {heading}\n\n{table.rstrip()}\n\n{missing}{picture}")
        self.failed |= any(row["wrong"] for row in data["rows"])

    def compare(
        self, title: str, collective: str, ranks: int, sizes: list[int], names: list[str],
        rounds: int,
    ) -> None:  # fmt: skip
        """Measures a collective against peers."""
        found = collect(collective, names, ranks, sizes, rounds, BUDGET_BYTES, LIMIT)
        rows = collective_report.rows(found.series, ranks, names, collective)
        if collective == "allreduce" and "slow" not in title:
            self.figures.allreduce.update({(ranks, r["peer"], r["bytes"]): r for r in rows})
        missing = {peers.load(name).TITLE: why for name, why in found.missing.items()}
        data = {"ranks": ranks, "rows": rows, "versions": found.versions, "missing": missing}
        table = f"Size: {DEFINITIONS[collective].size_is}.\n\n{collective_report.table_text(rows)}"
        has_picture = len(sizes) > 2 and bool(rows)
        if has_picture:
            plot(str(RESULTS / title), rows, ranks)
        heading = HEADINGS.get(title, f"{collective}, {ranks} ranks")
        self.add(title, heading, table, data, has_picture)

    def steps(self) -> None:
        """Measures training steps against plain Keras."""
        counts = {"mlp": (1, 2, 4), "small_cnn": (1, 2)}
        cases = [(m, n, r) for m in counts for n in counts[m] for r in (False, True)]
        found = jobs.collect(cases, self.rounds)
        rows, missing = overhead.rows(found), jobs.failures(found)
        self.figures.overhead = {(r["model"], r["processes"], r["ringar"]): r for r in rows}
        table = overhead.table_text(rows)
        self.add("overhead", "Training steps", table, {"rows": rows, "missing": missing}, False)
        self.failed |= bool(missing)

    def scaling(self) -> None:
        """Measures images/s against ideal."""
        parameters = scaling.measure_host()
        tried = jobs.cases(["mlp", "small_cnn", "alexnet", "resnet50"], [1, 2])
        found = jobs.collect(tried, 1)
        rows, missing = scaling.rows(found, parameters), jobs.failures(found)
        if rows:
            plot_scaling(str(RESULTS / "scaling"), rows)
        table = scaling.table_text(rows)
        self.add("scaling", "Scaling", table, {"rows": rows, "missing": missing}, bool(rows))
        self.failed |= bool(missing)

    def write(self, minutes: float) -> str:
        """Writes report.md and returns its head, the targets beside what was measured."""
        head = (
            f"# What was measured\n\n{machine.headline(machine.describe())}. Medians over "
            f"{self.rounds} turns, {minutes:.0f} minutes in all, by `python -m benchmarks`; least "
            "and greatest are in the tables below.\n\n"
            + bounds.table(targets(self.figures, SIZES))
            + "\n"
        )
        Path(RESULTS, "report.md").write_text(head + "".join(self.sections))
        return head


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each case (default 3)")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    everything = Report(options.rounds)
    for comparison in COMPARISONS:
        rounds = 1 if comparison[0] == "allreduce-slow-peers" else options.rounds
        everything.compare(*comparison, rounds=rounds)
    for collective in OTHERS:
        names = ["ringar_engine", "memcpy", "openmpi"]
        everything.compare(collective, collective, 2, FEW_SIZES, names, rounds=1)
    everything.steps()
    everything.scaling()
    print(everything.write((time.monotonic() - start) / 60))
    return 1 if everything.failed else 0


if __name__ == "__main__":
    sys.exit(main())
