"""Which bucket size trains fastest, and what bucketing costs?

    python -m benchmarks.buckets --models small_cnn,alexnet -np 2

Small buckets leave early, while the backward pass still runs, but each costs a collective's latency
and an op; one large bucket leaves when everything is there. Sizes are tried in turn;
DEFAULT_BUCKET_BYTES in ringar/buckets.py is what this has shown.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import machine, report
from benchmarks.allreduce import parse_size
from benchmarks.series import Series
from benchmarks.training import train


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.buckets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", default="small_cnn,alexnet")
    parser.add_argument("-np", "--num-proc", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--sizes", default="64K,512K,2M,8M,32M,256M", help="bytes, as in 512K,8M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", default=None, help="writes OUTPUT.json")
    options = parser.parse_args(arguments)
    sizes = [parse_size(size) for size in options.sizes.split(",")]
    found = {(model, size): Series() for model in options.models.split(",") for size in sizes}
    for number in range(options.rounds):
        for (model, size), result in found.items():
            bucket = report.size_text(size)
            print(f"round {number + 1} of {options.rounds}: {model}, {bucket}", file=sys.stderr)
            train(model, options.num_proc, result, bucket=size)
    here = machine.describe()
    rows = [
        {"model": model, "bucket": size, **result.summary()}
        for (model, size), result in found.items()
        if result.rounds
    ]
    print(f"# bucket sizes on {options.num_proc} ranks: {machine.headline(here)}")
    lines = [
        [row["model"], report.size_text(row["bucket"])]
        + [report.time_text(row[key]) for key in ("seconds", "min", "max")]
        + [row["wrong"]]
        for row in rows
    ]
    print(report.table(["model", "bucket", "step", "min", "max", "#wrong"], lines))
    if options.output:
        report.write_json(options.output, {"machine": here, "rows": rows})
    failed = [result.failure for result in found.values() if result.failure]
    return 1 if failed or any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
