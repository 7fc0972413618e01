"""Everything that fits into a quarter of an hour, with a report: ``python -m benchmarks``.

Writes to benchmarks/results/: report.md with the tables, the musts beside what was measured, and
the pictures, and a JSON file per question. Exits with 1 if a result was wrong; a must that is
missed is said in the report and changes no exit code, since machines differ.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import collectives, machine, overhead, report, scaling
from benchmarks.peers.ringar_group import RESNET50_BYTES

RESULTS = machine.ROOT / "benchmarks" / "results"
KIB, MIB = 2**10, 2**20


class Figures:
    """Looks up what was measured."""

    def __init__(self) -> None:
        self.allreduce: dict[int, dict[tuple[str, int], dict[str, Any]]] = {}
        self.overhead: dict[tuple[str, int, bool], dict[str, Any]] = {}

    def seconds(self, peer: str, size: int, ranks: int = 2, key: str = "seconds") -> float:
        """The median (or what ``key`` says), or NaN where the peer is missing."""
        row = self.allreduce.get(ranks, {}).get((peer, size))
        return row[key] if row else float("nan")

    def faster(self, peer: str, sizes: list[int], ranks: int = 2) -> float:
        """How many times faster than the peer, at the size where that is least."""
        return min(
            self.seconds(peer, size, ranks) / self.seconds("ringar_engine", size, ranks)
            for size in sizes
        )

    def slower_than_memcpy(self, sizes: list[int]) -> float:
        """How many times slower than a memcpy of all ranks, at the size where that is most."""
        return max(
            self.seconds("ringar_engine", size) / self.seconds("memcpy", size) for size in sizes
        )

    def of_plain(self, model: str, processes: int) -> float:
        """Steps/s over those of as many plain processes."""
        row = self.overhead.get((model, processes, True))
        return row["of_plain"] if row else float("nan")


def musts(f: Figures) -> list[list[str]]:
    """What must be reached, beside what was measured."""
    middle = [256 * KIB, MIB, 4 * MIB]
    small = [4, KIB, 4 * KIB, 64 * KIB]
    four_kib = f.seconds("ringar_engine", 4 * KIB) * 1e6
    added = f.seconds("ringar_op", 4 * KIB) - f.seconds("empty_op", 4 * KIB, key="fastest")
    group = f.seconds("ringar_group", RESNET50_BYTES) / f.seconds("ringar_engine", RESNET50_BYTES)
    checks = [
        ("allreduce 64 and 256 MiB against Open MPI", ">= 4x",
         f.faster("openmpi", [64 * MIB, 256 * MIB]), 4, "x"),
        ("allreduce 64 and 256 MiB against MPICH", ">= 4x",
         f.faster("mpich", [64 * MIB, 256 * MIB]), 4, "x"),
        ("allreduce 64 and 256 MiB against memcpy", "<= 1.1x",
         f.slower_than_memcpy([64 * MIB, 256 * MIB]), -1.1, "x"),
        ("allreduce 16 MiB against Open MPI", ">= 2.2x", f.faster("openmpi", [16 * MIB]), 2.2, "x"),
        ("allreduce 16 MiB against memcpy", "<= 1.3x", f.slower_than_memcpy([16 * MIB]), -1.3, "x"),
        ("allreduce 256 KiB to 4 MiB against Open MPI", ">= 2.2x",
         f.faster("openmpi", middle), 2.2, "x"),
        ("allreduce 4 B to 64 KiB against Open MPI", ">= 1x", f.faster("openmpi", small), 1, "x"),
        ("allreduce 4 KiB, engine", "<= 2 us", four_kib, -2, " us"),
        ("allreduce 4 KiB in tf.function, beyond the fastest call of an empty op", "<= 60 us",
         added * 1e6, -60, " us"),
        ("214 gradients of ResNet-50 against one array", "<= 1.15x", group, -1.15, "x"),
        ("tiny MLP, 2 ranks, of 2 plain processes", ">= 85%", f.of_plain("mlp", 2) * 100, 85, "%"),
        ("small CNN, 2 ranks, of 2 plain processes", ">= 94%",
         f.of_plain("small_cnn", 2) * 100, 94, "%"),
        ("tiny MLP, one rank, of plain Keras", ">= 98%", f.of_plain("mlp", 1) * 100, 98, "%"),
        ("small CNN, one rank, of plain Keras", ">= 98%",
         f.of_plain("small_cnn", 1) * 100, 98, "%"),
        ("allreduce 64 MiB, 4 ranks, against Open MPI", ">= 2.5x",
         f.faster("openmpi", [64 * MIB], ranks=4), 2.5, "x"),
    ]  # fmt: skip
    rows = []
    for what, must, figure, bound, unit in checks:
        reached = figure <= -bound if bound < 0 else figure >= bound
        verdict = "yes" if reached else "not measured" if figure != figure else "no"
        rows.append([what, must, f"{figure:.3g}{unit}", verdict])
    return rows


def run_allreduce(
    figures: Figures, ranks: int, sizes: list[int], names: list[str], rounds: int, title: str
) -> tuple[str, int]:
    """Measures, keeps the rows, and returns a section of the report and the wrong elements."""
    found = collectives.collect("allreduce", names, ranks, sizes, rounds, 1 << 30)
    rows = collectives.rows(found.series, ranks, names)
    figures.allreduce.setdefault(ranks, {}).update({(r["peer"], r["bytes"]): r for r in rows})
    stem = RESULTS / title
    data = {"machine": machine.describe(), "ranks": ranks, "rows": rows}
    report.write_json(str(stem), {**data, "versions": found.versions, "missing": found.missing})
    text = f"\n## allreduce, {ranks} ranks\n\n{report.collective_table(rows)}\n"
    text += "".join(f"\n{name}: not measured ({why})\n" for name, why in found.missing.items())
    if len(sizes) > 2:
        report.plot_collective(str(stem), rows, ranks)
        text += f"\n![allreduce]({title}.png)\n"
    return text, sum(row["wrong"] for row in rows)


def printed(function: Any, *arguments: Any) -> str:
    """What a function prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        function(*arguments)
    return output.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each case (default 3)")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    figures, sections, wrong = Figures(), [], 0

    sizes = [collectives.parse_size(size) for size in collectives.DEFAULT_SIZES]
    for ranks, sizes_, names, title in (
        (2, sizes, list(collectives.DEFAULT_PEERS), "allreduce"),
        (2, [RESNET50_BYTES], ["ringar_engine", "ringar_group"], "allreduce-group"),
        (4, [64 * MIB], ["ringar_engine", "openmpi"], "allreduce-4-ranks"),
    ):
        text, errors = run_allreduce(figures, ranks, sizes_, names, options.rounds, title)
        sections.append(text)
        wrong += errors

    cases = [(m, n, r) for m in ("mlp", "small_cnn") for n in (1, 2) for r in (False, True)]
    table = overhead.rows(overhead.collect(cases, options.rounds, 3))
    figures.overhead = {(r["model"], r["processes"], r["ringar"]): r for r in table}
    report.write_json(str(RESULTS / "overhead"), {"machine": machine.describe(), "rows": table})
    sections.append(f"\n## Training steps\n\n{printed(overhead.print_table, table)}")

    table = scaling.rows(scaling.collect(["small_cnn", "alexnet", "resnet50"], [1, 2], 1))
    report.write_json(str(RESULTS / "scaling"), {"machine": machine.describe(), "rows": table})
    report.plot_scaling(str(RESULTS / "scaling"), table)
    sections.append(
        f"\n## Scaling\n\n{printed(scaling.print_table, table)}\n![scaling](scaling.png)\n"
    )
    wrong += sum(row["wrong"] for row in table)

    here = machine.headline(machine.describe())
    minutes = (time.monotonic() - start) / 60
    head = (
        f"# What was measured\n\n{here}. Medians over {options.rounds} turns, "
        f"{minutes:.0f} minutes in all, by `python -m benchmarks`.\n\n"
        + report.table(["what", "must", "measured", "reached"], musts(figures))
        + "\n"
    )
    Path(RESULTS, "report.md").write_text(head + "".join(sections))
    print(head)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
