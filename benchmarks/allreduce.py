"""How long does an allreduce take, against other libraries and against a plain memcpy?

    python -m benchmarks.allreduce -np 2
    python -m benchmarks.allreduce -np 4 --peers ringar_engine,openmpi --sizes 64M

Peers are run in turn, several rounds of each, so that a noisy minute hits all of them. Every result
is checked in the run that is timed; a wrong element makes the exit code 1. The table has the form
of nccl-tests: algbw = bytes / time, busbw = algbw * 2 (n-1)/n, the rate at which a rank's link, or
its memory, must move bytes whatever the number of ranks.
"""

from __future__ import annotations

import argparse
import sys
from statistics import median
from typing import Any

from benchmarks import jobs, machine, peers, report
from benchmarks.series import Series

DEFAULT_SIZES = ("4", "1K", "4K", "64K", "256K", "1M", "4M", "16M", "64M", "256M")
DEFAULT_PEERS = ("ringar_engine", "ringar_op", "empty_op", "memcpy", "openmpi", "mpich")


def parse_size(text: str) -> int:
    """Bytes: 4, 64K, 16M, 1G (powers of 1024)."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    unit = units.get(text[-1:].upper(), 1)
    digits = text[:-1] if unit > 1 else text
    if not digits.isdigit() or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"expected a size such as 64K or 16M, received {text!r}")
    return int(digits) * unit


def slowest_rank(reports: list[dict[str, Any]], index: int) -> list[float]:
    """The times of the rank whose median is largest: a collective ends when all have ended."""
    return max((r["results"][index]["times"] for r in reports), key=median)


def collect(
    names: list[str], ranks: int, sizes: list[int], rounds: int, budget_bytes: int
) -> tuple[dict[tuple[str, int], Series], dict[str, str], dict[str, str]]:
    """Measures all peers in turn; returns series, versions, and why peers are missing."""
    series: dict[tuple[str, int], Series] = {}
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    options = {"sizes": sizes, "budget_bytes": budget_bytes}
    for number in range(rounds):
        for name in names:
            if name in missing:
                continue
            print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            try:
                reports = jobs.measure_peer(name, ranks, options, deadline=600)
            except jobs.JobFailedError as error:
                missing[name] = str(error)
                continue
            versions[name] = reports[0]["version"]
            for i, size in enumerate(sizes):
                one = series.setdefault((name, size), Series())
                one.rounds.append(slowest_rank(reports, i))
                one.wrong += sum(r["results"][i]["wrong"] for r in reports)
    return series, versions, missing


def rows(
    series: dict[tuple[str, int], Series], ranks: int, names: list[str]
) -> list[dict[str, Any]]:
    """The table as plain data, size by size."""
    table = []
    order = {name: i for i, name in enumerate(names)}
    for (name, size), one in sorted(series.items(), key=lambda kv: (kv[0][1], order[kv[0][0]])):
        algbw = size / one.seconds / 1e9
        table.append(
            {
                "bytes": size,
                "elements": max(1, size // 4),
                "type": "float32",
                "redop": "sum",
                "peer": name,
                "title": peers.load(name).TITLE,
                "algbw": algbw,
                "busbw": algbw * 2 * (ranks - 1) / ranks,
                **one.summary(),
            }
        )
    return table


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.allreduce",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-np", "--num-proc", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--sizes", default=",".join(DEFAULT_SIZES), help="bytes, as in 4K,64M")
    parser.add_argument(
        "--peers",
        default=",".join(DEFAULT_PEERS),
        help=f"of {', '.join(peers.names())} (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each peer (default 3)")
    parser.add_argument(
        "--budget", type=parse_size, default=parse_size("2G"), metavar="BYTES",
        help="how many bytes to reduce per size and turn, which sets the number of calls",
    )  # fmt: skip
    parser.add_argument("--output", default=None, help="writes OUTPUT.json and OUTPUT.png")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    names = options.peers.split(",")
    sizes = [parse_size(size) for size in options.sizes.split(",")]
    series, versions, missing = collect(
        names, options.num_proc, sizes, options.rounds, options.budget
    )
    table = rows(series, options.num_proc, names)
    here = machine.describe()
    print(f"# allreduce on {options.num_proc} ranks: {machine.headline(here)}")
    print(report.allreduce_table(table))
    for name, why in missing.items():
        print(f"{peers.load(name).TITLE}: not measured ({why})")
    if options.output:
        data = {"machine": here, "ranks": options.num_proc, "rows": table}
        report.write_json(options.output, {**data, "versions": versions, "missing": missing})
        report.plot_allreduce(options.output, table, options.num_proc)
    wrong = sum(row["wrong"] for row in table)
    if wrong:
        print(f"{wrong} wrong elements", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
