"""How fast is each plan of a scan on a GPU, and which one is chosen?

    python -m benchmarks.scan.plans --output build/scan_plans

`ringar/cupy/plan.py` cuts a scan into launches in many ways and chooses one by a model, whose
constants were fitted to these times. Each is the least of three means of five calls that follow
each other, by CUDA events; results of all plans of a scan are compared with its serial chain's, in
the norm of each step. Exits with 1 where they differ by more than 1e-3, with 2 where there is no
GPU.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from statistics import geometric_mean
from typing import Any, NamedTuple

from benchmarks.harness import command, machine, report
from ringar.cupy import device, plan
from ringar.cupy.plan import Plan, Shape
from ringar.cupy.scan import execute
from ringar.errors import UnsupportedError

TOLERANCE = 1e-3
CALLS, REPEATS = 5, 3


class Scan(NamedTuple):
    """A scan of `steps` matrices of `units` x `units` for each of `batch` examples."""

    units: int
    itemsize: int
    steps: int
    batch: int


def scans() -> list[Scan]:
    """The scans that are measured: those of the paper's RNN, and some of other sizes."""
    lengths = [(steps, 16) for steps in (10, 30, 100, 300, 1000, 3000, 10_000, 30_000)]
    batches = [(1000, batch) for batch in (2, 8, 32, 64, 128, 256)]
    grid = [(100, 16), (1000, 16), (3000, 4), (1000, 128)]
    return [
        *(Scan(20, 4, *case) for case in lengths + batches),
        *(Scan(units, 4, *case) for units in (5, 8, 32, 64) for case in grid),
        *(Scan(units, 8, *case) for units in (8, 20, 64) for case in grid),
    ]


def plans(steps: int) -> list[Plan]:
    """All plans that may be chosen, the serial chain first."""
    per_round = range(2, plan.LEVELS_PER_ROUND + 3)
    levels = range(steps.bit_length() + 1)
    return list(dict.fromkeys(plan.plan(steps, n, most) for n in levels for most in per_round))


def measure(cupy: Any, call: Callable[[], Any]) -> float:
    """Times a call that is enqueued again and again, in seconds."""
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    call()
    times = []
    for _ in range(REPEATS):
        cupy.cuda.Device().synchronize()
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        times.append(float(cupy.cuda.get_elapsed_time(start, end)) * 1e-3 / CALLS)
    return min(times)


def row(cupy: Any, scan: Scan, processors: int) -> dict[str, Any]:
    """Times all plans of a scan."""
    units, itemsize, steps, batch = scan
    shape = Shape(units, itemsize, affine=False)
    launcher = device.kernels(shape, cupy.cuda.Device().id)
    dtype = {4: "float32", 8: "float64"}[itemsize]
    random = cupy.random.RandomState(0)
    matrices = (random.standard_normal((steps, batch, units, units)) / units**0.5).astype(dtype)
    vector = cupy.ones((batch, units), dtype)

    def run(scan_plan: Plan) -> Any:
        return execute(scan_plan, shape, launcher, matrices, vector, None, adjoint=True)

    def differs(result: Any) -> bool:
        size = cupy.abs(expected).max(axis=(1, 2)) + 1e-30
        return bool((cupy.abs(result - expected).max(axis=(1, 2)) > TOLERANCE * size).any())

    expected = run(plans(steps)[0])
    entries = [
        {
            "widths": [r.width for r in scan_plan.rounds],
            "seconds": measure(cupy, functools.partial(run, scan_plan)),
            "is_wrong": differs(run(scan_plan)),
            "is_chosen": scan_plan == plan.choose(steps, batch, units, itemsize, processors),
        }
        for scan_plan in plans(steps)
    ]
    return {**scan._asdict(), "plans": entries}


def summary(rows: list[dict[str, Any]]) -> str:
    """Returns a table of the fastest, the chosen and the serial plan of each scan."""
    lines, ratios = [], []
    for entry in rows:
        fastest = min(entry["plans"], key=lambda timing: float(timing["seconds"]))
        (chosen,) = (timing for timing in entry["plans"] if timing["is_chosen"])
        ratios.append(chosen["seconds"] / fastest["seconds"])
        times = [
            f"{1e6 * timing['seconds']:.0f}" for timing in (entry["plans"][0], fastest, chosen)
        ]
        widths = [", ".join(map(str, timing["widths"])) or "serial" for timing in (fastest, chosen)]
        lines.append([entry["units"], entry["itemsize"], entry["steps"], entry["batch"], *times,
                      *widths, f"{ratios[-1]:.2f}"])  # fmt: skip
    headers = ["H", "bytes", "steps", "examples", "serial, us", "fastest, us", "chosen, us",
               "fastest: spans of", "chosen: spans of", "chosen / fastest"]  # fmt: skip
    return (
        report.table(headers, lines)
        + f"\n\nchosen / fastest: {geometric_mean(ratios):.3f}, at most {max(ratios):.2f}\n"
    )


def parser() -> argparse.ArgumentParser:
    return command.parser("benchmarks.scan.plans", __doc__)


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        cupy = device.load()
    except (ImportError, UnsupportedError) as error:
        print(f"benchmarks.scan.plans: {error}", file=sys.stderr)
        return 2
    number = cupy.cuda.Device().id
    card = cupy.cuda.runtime.getDeviceProperties(number)["name"].decode()
    processors = device.attributes(number)["MultiProcessorCount"]
    rows = [row(cupy, scan, processors) for scan in scans()]
    host = machine.describe()
    print(f"# plans of scans on {card}, {machine.headline(host)}\n\n{summary(rows)}", end="")
    if options.output:
        report.write_json(options.output, {"machine": host, "card": card, "rows": rows})
    deviations = sum(timing["is_wrong"] for entry in rows for timing in entry["plans"])
    if deviations:
        print(f"{deviations} plans differ from the serial chain", file=sys.stderr)
    return 1 if deviations else 0


if __name__ == "__main__":
    sys.exit(main())
