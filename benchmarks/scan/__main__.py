"""Where is a backward pass by a scan faster, and how fast are ringar's recurrent layers?

    python -m benchmarks.scan --output build/scan
    python -m benchmarks.scan --layer LSTM --output build/scan-lstm
    python -m benchmarks.scan --quick

The grid of the paper (Wang, Bai, Pekhimenko, BPPSA, arXiv:1907.10134): a tanh RNN of 20 units that
tells ten kinds of bit sequences apart (examples/bits.py), 10 to 30,000 steps with 16 examples and 2
to 256 examples with 1000 steps. Measures Keras' SimpleRNN in `tf.function`, alone and with
jit_compile=True, and `ringar.layers.ScanSimpleRNN` with its serial kernel, the scan, the hybrid of
3 levels and the automatic choice, the last also compiled. Each runs in one process with one thread
and with two, bound to as many cores, and on two ranks that share the batch, or the steps.

With `--layer LSTM` the same of Keras' LSTM and `ringar.layers.ScanLSTM`, whose way back is the
serial kernel, and of some sizes with hundreds of units.

Forward: the layer alone, without a tape. Step: forward, the loss, the gradients of all weights.
Backward: a step less a forward pass, both called one after the other; Jacobians, which the scan
makes on its way, included. Jacobians: the op that makes all of them, where they fit into 1.5 GB.
Every round has a turn of each way, and is compared with itself.

Loss and gradients of each way must be those of Keras' `tf.function`, and those of Keras the same
with any number of threads and ranks. Exits with 1 where they are not, or where a job failed; a
missed target changes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import command, launch, machine, report, results
from benchmarks.harness import targets as bounds
from benchmarks.harness.jobs import Reports, run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.scan import crossover as scan_crossover
from benchmarks.scan import report as scan_report
from benchmarks.scan.cells import (
    ONE,
    PLACES,
    RANKS,
    Cell,
    Outcome,
    Place,
    grid,
    large_cells,
    slowest,
    small_cells,
    to_rows,
)
from benchmarks.scan.worker import LAYERS, TOLERANCE, WAYS

LIMIT = 900.0


@dataclass(frozen=True)
class Job:
    """One start of processes."""

    place: Place
    cells: list[Cell]
    costs: tuple[int, ...] = ()
    """Sizes of matrices whose products are timed, too."""


@dataclass
class Measured:
    """The times of all jobs, and the reasons of missing ones."""

    times: Outcome = field(default_factory=dict)
    costs: dict[int, tuple[float, float]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    norms: dict[Cell, list[float]] = field(default_factory=dict)
    """Of Keras' loss and gradients, by the first job that had the cell."""
    reasons: dict[str, str] = field(default_factory=dict)


def plan(quick: bool = False, layer: str = LAYERS[0]) -> list[Job]:
    """Returns all jobs."""
    if layer == "LSTM":
        places = (ONE, RANKS) if quick else PLACES.values()
        extras = {ONE: large_cells(quick)}
        return [Job(place, grid(quick) + extras.get(place, [])) for place in places]
    if quick:
        cells = grid(quick)
        return [Job(ONE, cells + small_cells(quick), (1, 20)), Job(RANKS, cells[-1:])]
    return [
        Job(place, grid() + (small_cells() if place is ONE else []),
            scan_crossover.UNITS if place is ONE else ())
        for place in PLACES.values()
    ]  # fmt: skip


def run(job: Job, options: dict[str, Any]) -> Reports:
    """Runs a job.

    Raises:
        JobFailedError: the job failed, or this machine has too few cores.
    """
    place, usable = job.place, sorted(os.sched_getaffinity(0))
    if place.ranks * place.threads > len(usable):
        raise JobFailedError(f"needs {place.ranks * place.threads} cores, there are {len(usable)}")
    cells = [[cell.steps, cell.batch, cell.units] for cell in job.cells]
    options = {
        **options, "cells": cells, "costs": job.costs, "ranks": place.ranks,
        "threads": place.threads, "cores": usable[-place.threads :],
    }  # fmt: skip
    return run_worker(
        "benchmarks.scan.worker", options, place.ranks, deadline=LIMIT, command=launch.one_process
    )


def add(outcome: Measured, job: Job, reports: Reports) -> None:
    """Keeps the times of the slowest rank, and the wrong results of all ranks."""
    for number, cell in enumerate(job.cells):
        cells = [r["cells"][number] for r in reports]
        outcome.times.setdefault(job.place, {})[cell] = slowest(cells)
        for rank, figures in enumerate(cells):
            who = f"{job.place.title}{f', rank {rank}' if len(cells) > 1 else ''}, {cell}"
            outcome.faults += [f"{who}, {WAYS[way].title}: {text}"
                               for way, text in figures["wrong"].items()]  # fmt: skip
            norms = outcome.norms.setdefault(cell, figures["norms"])
            pairs = zip(figures["norms"], norms, strict=True)
            if not all(abs(a - b) <= TOLERANCE * abs(b) for a, b in pairs):
                outcome.faults.append(f"{who}, Keras: loss or gradients are not those elsewhere")
    costs = reports[0]["costs"]
    outcome.costs.update({int(units): (pair[0], pair[1]) for units, pair in costs.items()})


def measure(jobs: list[Job], options: dict[str, Any]) -> Measured:
    """Runs all jobs, one after the other."""
    outcome = Measured()
    for job in jobs:
        print(f"{job.place.title}: {len(job.cells)} cells", file=sys.stderr, flush=True)
        start = time.monotonic()
        try:
            add(outcome, job, run(job, options))
        except JobFailedError as error:
            outcome.reasons[job.place.title] = str(error)
        print(f"  {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return outcome


def parser() -> argparse.ArgumentParser:
    result = command.parser(
        "benchmarks.scan", __doc__, "writes OUTPUT.json, for benchmarks.scan.plot"
    )
    option = result.add_argument
    option("--rounds", type=int, default=5, help="turns of each way (default %(default)s)")
    option("--budget", type=float, default=0.05, help="seconds of a turn (default %(default)s)")
    option("--layer", choices=LAYERS, default=LAYERS[0], help="(default %(default)s)")
    option("--place", choices=list(PLACES), help="only there")
    option("--quick", action="store_true", help="few small cells, one round: does it run?")
    option("--fault", choices=list(WAYS), help="spoils the results of a way: is it found?")
    return result


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    rounds = 1 if options.quick else options.rounds
    layer = options.layer
    common = {"budget": options.budget, "fault": options.fault, "layer": layer}
    jobs = [job for job in plan(options.quick, layer)
            if options.place in (None, job.place.title)]  # fmt: skip
    outcome = measure(jobs, {"rounds": rounds, **common})
    host = machine.describe()
    of_layer = scan_report.lstm_targets if layer == "LSTM" else scan_report.targets
    targets = of_layer(outcome.times)
    print(f"# {layer} of 20 units, forward and backward, {machine.headline(host)}\n")
    print(scan_report.text(outcome.times, outcome.costs))
    print(bounds.table(targets))
    print(report.missing_lines(outcome.reasons), end="")
    data = {
        "tried": {"places": [job.place.title for job in jobs]},
        "missing": outcome.reasons,
        "wrong": outcome.faults,
        "layer": layer,
        "rounds": rounds,
        "cells": to_rows(outcome.times),
        "costs": outcome.costs,
        "targets": [target.row() for target in targets],
    }
    name = "scan" if layer == LAYERS[0] else f"scan-{layer.lower()}"
    if options.place:
        name += "-" + options.place.replace(" ", "-")
    results.keep(f"{name}-quick" if options.quick else name, host, data, options.output)
    for line in outcome.faults:
        print(f"wrong: {line}", file=sys.stderr)
    return 1 if outcome.faults or outcome.reasons else 0


if __name__ == "__main__":
    sys.exit(main())
