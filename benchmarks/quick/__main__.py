"""How soon is ringar there? Small arrays beside mpi4py, begins of epochs, starts of jobs.

    python -m benchmarks.quick

- `calls`: collectives of small NumPy arrays and of eager tensors, beside mpi4py's in the same two
  processes, in turns.
- `epochs`: the time from the beginning of each epoch of `fit` to its first batch, of arrays and
  of a `tf.data.Dataset` that TensorFlow tunes.
- `starts`: jobs whose ranks add two NumPy arrays, from the launcher's start to the first collective
  and to the end, up to 64 ranks on this host and on 8 hosts (network namespaces; needs root), with
  the memory that a rank does not share, its sockets and its threads.

Tables show medians, with the least and the greatest of the rounds. The rows are recorded in
`benchmarks/results/`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import command, jobs, launch, machine, report, results
from benchmarks.harness.report import KIB
from benchmarks.harness.series import slowest
from benchmarks.quick import epochs, starts

SIZES = (64, 4 * KIB, 16 * KIB)
ROUNDS, EPOCHS = 15, 40
LIMIT = 300.0

Row = dict[str, Any]


def figures(times: list[float]) -> Row:
    """Returns the median, the least and the greatest."""
    return {"seconds": median(times), "min": min(times), "max": max(times)}


def calls() -> results.Run:
    """Measures small collectives on two ranks that Open MPI has started."""
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
            rows.append({"collective": name, "bytes": size, "way": way, **figures(times)})
    return {"tried": {"sizes": list(SIZES)}, "rows": rows, "missing": {}}


def calls_table(rows: list[Row]) -> str:
    """Returns a table of small collectives, a row for each way of its arrays."""
    peers = {(r["collective"], r["bytes"]): r["seconds"] for r in rows if r["way"] == "mpi4py"}
    lines = []
    for row in rows:
        ratio = row["seconds"] / peers[row["collective"], row["bytes"]]
        name = row["collective"], row["bytes"], row["way"]
        lines.append([*name, *report.spread(row), f"{ratio:.2f}x"])
    headers = ["collective", "bytes", "way", "median", "least", "greatest", "of mpi4py's"]
    return report.table(headers, lines)


def first_batches() -> results.Run:
    """Measures how long epochs of `fit` take to begin, on one rank and on two."""
    rows = []
    for data, ranks in itertools.product(epochs.DATA, (1, 2)):
        options = {"epochs": EPOCHS, "data": data}
        reports = jobs.run_worker("benchmarks.quick.epochs", options, ranks, deadline=LIMIT)
        # Not the first, which builds the step.
        times = slowest(r["waits"][1:] for r in reports)
        rows.append({"title": epochs.title(data, ranks), **figures(times)})
    return {"tried": {}, "rows": rows, "missing": {}}


def first_batches_table(rows: list[Row]) -> str:
    """Returns a line per kind of data and number of ranks."""
    lines = [[row["title"], *report.spread(row)] for row in rows]
    return report.table(["epochs of", "median", "least", "greatest"], lines)


Part = tuple[Callable[[], results.Run], Callable[[list[Row]], str]]
"""What measures, and what makes a table of the rows."""

PARTS: dict[str, Part] = {
    "calls": (calls, calls_table),
    "epochs": (first_batches, first_batches_table),
    "starts": (starts.measure, starts.table_text),
}


def main(arguments: list[str] | None = None) -> int:
    cli = command.parser("benchmarks.quick", __doc__, output=None)
    cli.add_argument("parts", nargs="*", metavar="PART", help="calls, epochs or starts; all")
    options = cli.parse_args(arguments)
    if strangers := set(options.parts) - PARTS.keys():
        cli.error(f"expected parts out of {', '.join(PARTS)}, received {', '.join(strangers)}")
    host = machine.describe()
    print(machine.headline(host))
    for name in options.parts or PARTS:
        measure, table_text = PARTS[name]
        run = measure()
        results.record(name, host, run)
        reasons = report.missing_lines(run["missing"])
        print(f"\n{name}\n\n{table_text(run['rows'])}\n{reasons}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
