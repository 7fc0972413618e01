"""How soon is ringar there? Small arrays beside mpi4py, begins of epochs, starts of jobs.

    python -m benchmarks.quick

- `calls`: collectives of small NumPy arrays and of eager tensors, beside mpi4py's in the same two
  processes, in turns; recorded in `benchmarks/results/`.
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

from benchmarks.harness import command, jobs, launch, machine, report, results
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
    """Measures small collectives on two ranks that Open MPI has started, and records them."""
    options = {"sizes": SIZES, "rounds": ROUNDS}
    reports = jobs.run_worker(
        "benchmarks.quick.calls", options, 2, deadline=LIMIT, command=launch.open_mpi,
        environment=Path(sys.prefix),
    )  # fmt: skip
    rows = []
    for cases in zip(*(r["results"] for r in reports), strict=True):
        name, size, _ = cases[0]
        for way in cases[0][2]:
            times = slowest(case[2][way] for case in cases)
            figures = {"seconds": median(times), "min": min(times), "max": max(times)}
            rows.append({"collective": name, "bytes": size, "way": way, **figures})
    results.record("calls", machine.describe(), {"tried": {"sizes": list(SIZES)}, "rows": rows})
    return calls_table(rows)


def calls_table(rows: list[dict[str, Any]]) -> str:
    """Returns a table of small collectives, a row for each way of its arrays."""
    peers = {(r["collective"], r["bytes"]): r["seconds"] for r in rows if r["way"] == "mpi4py"}
    lines = []
    for row in rows:
        ratio = row["seconds"] / peers[row["collective"], row["bytes"]]
        name = row["collective"], row["bytes"], row["way"]
        lines.append([*name, *report.spread(row), f"{ratio:.2f}x"])
    headers = ["collective", "bytes", "way", "median", "least", "greatest", "of mpi4py's"]
    return report.table(headers, lines)


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
