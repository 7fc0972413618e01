"""Everything that fits into twenty minutes, with a report: `python -m benchmarks`.

How far from ideal the hosts of a job train, under any launcher: `python -m benchmarks.scaling`.

Writes the pictures and report.md, with the tables and the targets beside what was measured, to
build/bench-report/, and records the figures for this kind of machine in benchmarks/results/. The
report names what fails, and the rest goes on. With `--targets` only what the targets need is
measured. Exits with 1 if a result was wrong or a training job failed. The report says which targets
were missed; they change no exit code, since machines differ.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks import peers
from benchmarks.collectives import report as collective_report
from benchmarks.collectives.__main__ import DEFAULT_PEERS
from benchmarks.collectives.measure import collect
from benchmarks.collectives.plot import plot
from benchmarks.harness import machine, report, results
from benchmarks.harness import targets as bounds
from benchmarks.harness.definitions import DEFINITIONS
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.report import KIB, MIB
from benchmarks.peers.ringar_group import RESNET50_BYTES
from benchmarks.quick.__main__ import PARTS
from benchmarks.rates import __main__ as rates
from benchmarks.scaling import __main__ as scaling
from benchmarks.scaling import report as scaling_report
from benchmarks.scaling.plot import draw
from benchmarks.targets import SIZES, Figures, targets
from benchmarks.training import crowd, steps
from benchmarks.training.step_worker import WAYS

REPORT = machine.ROOT / "build" / "bench-report"
FEW_SIZES = [4 * KIB, MIB, 64 * MIB]
COMPARISONS = (
    ("allreduce-2-ranks", "allreduce", 2, SIZES, list(DEFAULT_PEERS)),
    ("allreduce-group", "allreduce", 2, [RESNET50_BYTES], ["ringar_engine", "ringar_group"]),
    ("allreduce-4-ranks", "allreduce", 4, [64 * MIB],
     ["ringar_engine", "openmpi", "mpich", "intelmpi"]),
)  # fmt: skip
"""What the targets need: title, collective, ranks, sizes, peers."""
SLOW_PEERS = ("allreduce-slow-peers", "allreduce", 2, FEW_SIZES,
              ["ringar_engine", "gloo", "tensorflow_collectives", "horovod"])  # fmt: skip
"""They get few sizes, for the time they take."""
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
        self.runs: dict[str, results.Run] = {}
        self.sections: list[str] = []
        self.failed = False

    def add(
        self, title: str, heading: str, table: str, data: results.Run, has_picture: bool
    ) -> None:
        """Records the figures and keeps the section."""
        self.runs[title] = data
        results.record(title, machine.describe(), data)
        picture = f"\n![{heading}]({title}.png)\n" if has_picture else ""
        reasons = report.missing_lines(data["missing"]).replace("\n", "\n\n")
        self.sections.append(f"\n## {heading}\n\n{table.rstrip()}\n\n{reasons}{picture}")
        self.failed |= any(row.get("wrong") for row in data["rows"])

    def compare(
        self, title: str, collective: str, ranks: int, sizes: list[int], names: list[str],
        rounds: int,
    ) -> None:  # fmt: skip
        """Measures a collective against peers."""
        outcome = collect(collective, names, ranks, sizes, rounds, BUDGET_BYTES, LIMIT)
        rows = collective_report.rows(outcome.series, ranks, names, collective)
        reasons = {peers.load(name).TITLE: why for name, why in outcome.reasons.items()}
        data = {"tried": {"peers": names, "sizes": sizes}, "ranks": ranks, "rows": rows,
                "peers": outcome.versions, "missing": reasons}  # fmt: skip
        table = f"Size: {DEFINITIONS[collective].size_is}.\n\n{collective_report.table_text(rows)}"
        has_picture = len(sizes) > 2 and bool(rows)
        if has_picture:
            plot(str(REPORT / title), rows, ranks)
        heading = HEADINGS.get(title, f"{collective}, {ranks} ranks")
        self.add(title, heading, table, data, has_picture)

    def rates(self) -> None:
        """Measures how fast cores copy to each other."""
        try:
            rows = rates.measure()
        except JobFailedError as error:
            self.fail("Copies", error)
            return
        data = {"tried": {}, "rows": rows, "missing": {}}
        self.add("rates", "Copies", rates.text(rows), data, False)

    def steps(self) -> None:
        """Measures training steps against plain Keras."""
        cases = steps.cases(["mlp", "small_cnn"], list(WAYS), [1, 2])
        rows, reasons = steps.collect(cases, 3 * self.rounds)
        scope = {"cases": [steps.title(case) for case in cases]}
        data = {"tried": scope, "rows": rows, "missing": reasons}
        self.add("steps", "Training steps", steps.table_text(rows), data, False)
        self.failed |= bool(reasons)

    def quick(self) -> None:
        """Measures small calls, begins of epochs and starts of jobs."""
        for name, (measure, table_text) in PARTS.items():
            try:
                run = measure()
            except JobFailedError as error:
                self.fail(f"Quick: {name}", error)
            else:
                self.add(name, f"Quick: {name}", table_text(run["rows"]), run, False)

    def crowd(self) -> None:
        """Measures training on more ranks than cores."""
        title = "More ranks than cores"
        try:
            rows = crowd.measure(self.rounds)
        except JobFailedError as error:
            self.fail(title, error)
        else:
            data = {"tried": {}, "rows": rows, "missing": {}}
            self.add("crowd", title, crowd.table_text(rows), data, False)

    def fail(self, heading: str, error: JobFailedError) -> None:
        """Keeps a section about a job that failed."""
        self.sections.append(f"\n## {heading}\n\nnot measured ({error})\n")
        self.failed = True

    def scaling(self) -> None:
        """Measures images/s against ideal on two ranks."""
        options = scaling.settings(scaling.DEFAULT_MODELS.split(","))
        try:
            data = scaling.run(options, 2)
        except JobFailedError as error:
            self.fail("Scaling", error)
            return
        run = scaling.recorded(data)
        draw(data, str(REPORT / "scaling"))
        self.add("scaling", "Scaling", scaling_report.table_text(run["rows"]), run, True)

    def write(self, minutes: float) -> str:
        """Writes report.md and returns its head, the targets beside what was measured."""
        head = (
            f"# What was measured\n\n{machine.headline(machine.describe())}. Medians over "
            f"{self.rounds} turns, {minutes:.0f} minutes in all, by `python -m benchmarks`; least "
            "and greatest are in the tables below.\n\n"
            + bounds.table(targets(Figures(self.runs)))
            + "\n"
        )
        REPORT.mkdir(parents=True, exist_ok=True)
        Path(REPORT, "report.md").write_text(head + "".join(self.sections))
        return head


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=(__doc__ or "").replace("\n\n", "\n", 1),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each case (default 3)")
    parser.add_argument("--targets", action="store_true", help="only what the targets need")
    options = parser.parse_args()
    start = time.monotonic()
    everything = Report(options.rounds)
    everything.rates()
    for comparison in COMPARISONS:
        everything.compare(*comparison, rounds=options.rounds)
    everything.steps()
    everything.quick()
    everything.crowd()
    if not options.targets:
        everything.compare(*SLOW_PEERS, rounds=1)
        for collective in OTHERS:
            names = ["ringar_engine", "memcpy", "openmpi"]
            everything.compare(f"{collective}-2-ranks", collective, 2, FEW_SIZES, names, rounds=1)
        everything.scaling()
    print(everything.write((time.monotonic() - start) / 60))
    return 1 if everything.failed else 0


if __name__ == "__main__":
    sys.exit(main())
