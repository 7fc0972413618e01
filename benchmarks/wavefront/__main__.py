"""How fast is a stack of recurrent layers in wavefronts, over ranks and over threads?

    python -m benchmarks.wavefront --output build/wavefront
    python -m benchmarks.wavefront --cell lstm --batches 16 --chunks 10,20
    python -m benchmarks.wavefront.plot build/wavefront.json docs/pictures/wavefront.png

Measures whole steps of training: one thread with the same layers one after the other, which all
figures are compared to; ranks of one thread each, with several chunks and with ringar's choice; and
one process with as many threads. The column S is P T / (T + (P-1) k), what equal blocks and free
messages would give. Exits with 1 on wrong numbers or a job that failed; a missed target changes
nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from benchmarks.harness import command, launch, machine, report, results
from benchmarks.harness import targets as bounds
from benchmarks.harness.jobs import Reports, run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.wavefront.report import Way, faults, rows, targets, text, ways
from benchmarks.wavefront.worker import CELLS, REFERENCE

LIMIT = 300.0


def run(way: Way, job: dict[str, Any], cases: list[str], timeline: int = 0) -> Reports:
    """Runs the job of a way.

    Raises:
        JobFailedError: the job failed.
    """
    cores = sorted(os.sched_getaffinity(0))[: way.threads]
    options = {**job, "ranks": way.ranks, "threads": way.threads, "cores": cores, "cases": cases,
               "timeline": timeline}  # fmt: skip
    return run_worker("benchmarks.wavefront.worker", options, way.ranks, deadline=LIMIT,
                      command=launch.one_process)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    result = command.parser(
        "benchmarks.wavefront", __doc__, "writes OUTPUT.json, for benchmarks.wavefront.plot"
    )
    add = result.add_argument
    add("--cell", choices=sorted(CELLS), default="gru", help="(default %(default)s)")
    add("--layers", type=int, default=4, help="(default %(default)s)")
    add("--units", type=int, default=256, help="of each layer (default %(default)s)")
    add("--steps", type=int, default=100, help="of a sequence (default %(default)s)")
    add("--batches", default="16,64", help="sequences of a step (default %(default)s)")
    add("--chunks", default="5,10,20,25,50", help="steps of a chunk (default %(default)s)")
    add("--ranks", type=int, default=2, help="ranks, and threads (default %(default)s)")
    add("--rounds", type=int, default=3, help="turns of each case (default %(default)s)")
    add("--count", type=int, default=5, help="steps of a turn (default %(default)s)")
    add("--only", default="", help=f"some of {','.join(ways(2))}")
    return result


def main(arguments: list[str] | None = None) -> int:
    cli = parser()
    options = cli.parse_args(arguments)
    chosen = options.only.split(",") if options.only else list(ways(options.ranks))
    if options.ranks < 2 or not set(chosen) <= set(ways(2)):
        cli.error(f"--ranks must be at least 2, --only some of {', '.join(ways(2))}")
    chunks = options.chunks.split(",")
    job = {"cell": options.cell, "layers": options.layers, "units": options.units,
           "steps": options.steps, "rounds": options.rounds, "counts": options.count}  # fmt: skip
    table, errors, reasons, cells = [], [], {}, []
    for batch in map(int, options.batches.split(",")):
        by_way: dict[str, Reports] = {}
        for name, way in ways(options.ranks).items():
            if name not in chosen:
                continue
            print(f"batch {batch}, {way.title}", file=sys.stderr, flush=True)
            cases = {"one": [REFERENCE], "ranks": [*chunks, "auto"],
                     "threads": [REFERENCE, *chunks, "auto"]}[name]  # fmt: skip
            shown = int(chunks[len(chunks) // 2]) if name == "ranks" else 0
            try:
                by_way[name] = run(way, {**job, "batch": batch}, cases, shown)
            except JobFailedError as error:
                reasons[f"batch {batch}, {way.title}"] = str(error)
        table += rows(batch, options.steps, by_way, options.ranks)
        errors += faults(by_way)
        if "ranks" in by_way:
            cells = [r["timeline"] for r in by_way["ranks"]]
    host = machine.describe()
    print(f"# {options.layers} layers of {options.units} units ({options.cell}), "
          f"{options.steps} steps, {machine.headline(host)}\n")  # fmt: skip
    print(text(table, options.ranks) + "\n")
    print(bounds.table(targets(table, options.ranks)))
    print(report.missing_lines(reasons), end="")
    data = {"tried": {"ways": chosen}, "missing": reasons, "job": job, "rows": table,
            "timeline": cells}  # fmt: skip
    results.keep(f"wavefront-{options.cell}-{options.ranks}-ranks", host, data, options.output)
    for line in errors:
        print(f"wrong: {line}", file=sys.stderr)
    return 1 if errors or reasons else 0


if __name__ == "__main__":
    sys.exit(main())
