"""How soon is ringar there? Small arrays beside mpi4py, begins of epochs, starts of jobs.

    python -m benchmarks.quick

- `calls`: collectives of small NumPy arrays and of eager tensors, beside mpi4py's in the same two
  processes, in turns; recorded in `benchmarks/results/`.
- `epochs`: the time from the beginning of each epoch of `fit` to its first batch.
- `starts`: jobs whose ranks add two NumPy arrays, from the launcher's start to its end.

Tables show medians, with the least and the greatest of the rounds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import command, jobs, launch, machine, processes, report, results
from benchmarks.harness.report import KIB
from benchmarks.harness.series import slowest

SIZES = (64, 4 * KIB, 16 * KIB)
ROUNDS, EPOCHS = 15, 40
STARTS = (1, 2, 4, 64)
LIMIT = 300.0

ADDS = """
import numpy as np, ringar
ringar.init()
assert ringar.allreduce(np.ones(2), ringar.Sum)[0] == ringar.size()
"""


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


def starts() -> str:
    """Measures whole jobs."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "adds.py")
        script.write_text(ADDS)
        for ranks in STARTS:
            job = launch.ringarrun(Path(sys.prefix), ranks, [str(script)])
            times = []
            for _ in range(1 if ranks > 8 else 5):
                start = time.perf_counter()
                processes.run_command(job, deadline=LIMIT)
                times.append(time.perf_counter() - start)
            rows.append([ranks, *spread(times)])
    return report.table(["ranks", "median", "least", "greatest"], rows)


PARTS = {"calls": calls, "epochs": epochs, "starts": starts}


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
