"""How soon is ringar there? Small arrays beside mpi4py, begins of epochs, starts of jobs.

    python -m benchmarks.quick

- `calls`: collectives of small NumPy arrays and of eager tensors, beside mpi4py's in the same two
  processes, in turns.
- `epochs`: the time from the beginning of each epoch of `fit` to its first batch.
- `starts`: jobs whose ranks add two NumPy arrays, from the launcher's start to the first collective
  and to the end, up to 64 ranks on this host and on 8 hosts (network namespaces; needs root), with
  the memory that a rank does not share, its sockets and its threads.

Tables show medians, with the least and the greatest of the rounds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import command, jobs, launch, machine, report
from benchmarks.harness.report import KIB
from benchmarks.harness.series import slowest
from benchmarks.quick import starts

SIZES = (64, 4 * KIB, 16 * KIB)
ROUNDS, EPOCHS = 15, 40
LIMIT = 300.0


def spread(times: list[float]) -> list[str]:
    """Returns the median, the least and the greatest, as text."""
    return [report.time_text(value) for value in (median(times), min(times), max(times))]


def calls() -> str:
    """Measures small collectives on two ranks that Open MPI has started."""
    options = {"sizes": SIZES, "rounds": ROUNDS}
    reports = jobs.run_worker(
        "benchmarks.quick.calls", options, 2, deadline=LIMIT, command=launch.open_mpi,
        environment=Path(sys.prefix),
    )  # fmt: skip
    rows: list[list[Any]] = []
    for name, size, times in reports[0]["results"]:
        peer = median(times["mpi4py"])
        for way, seconds in times.items():
            rows.append([name, size, way, *spread(seconds), f"{median(seconds) / peer:.2f}x"])
    return report.table(
        ["collective", "bytes", "way", "median", "least", "greatest", "of mpi4py's"], rows
    )


def epochs() -> str:
    """Measures how long epochs of `fit` take to begin, on one rank and on two."""
    rows = []
    for ranks in (1, 2):
        options = {"epochs": EPOCHS}
        reports = jobs.run_worker("benchmarks.quick.epochs", options, ranks, deadline=LIMIT)
        # Not the first, which builds the step.
        rows.append([ranks, *spread(slowest(r["waits"][1:] for r in reports))])
    return report.table(["ranks", "median", "least", "greatest"], rows)


PARTS = {"calls": calls, "epochs": epochs, "starts": starts.table_text}


def main(arguments: list[str] | None = None) -> int:
    cli = command.parser("benchmarks.quick", __doc__, output=None)
    cli.add_argument("parts", nargs="*", metavar="PART", help="calls, epochs or starts; all")
    options = cli.parse_args(arguments)
    if strangers := set(options.parts) - PARTS.keys():
        cli.error(f"expected parts out of {', '.join(PARTS)}, received {', '.join(strangers)}")
    print(machine.headline(machine.describe()))
    for name in options.parts or PARTS:
        print(f"\n{name}\n\n{PARTS[name]()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
