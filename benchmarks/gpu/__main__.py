"""Collectives on GPUs, against NCCL through CuPy's bindings and against a copy on the device.

    python -m benchmarks.allreduce --device gpu -np 2
    python -m benchmarks.collectives --device gpu --collective allgather

All ranks are those of one job: peers are measured in turn, in several rounds, on the same arrays.
There are two timings, both of the slowest rank. Throughput, as in nccl-tests: many calls are
enqueued and waited for once. Latency: each call is waited for. `--limit` is for each round of all
peers. Exits with 1 where a result is wrong, with 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any

from benchmarks.gpu import cases as gpu_cases
from benchmarks.gpu import report as gpu_report
from benchmarks.gpu.peers import PEERS
from benchmarks.harness import machine, report, targets
from benchmarks.harness.definitions import DEFINITIONS
from benchmarks.harness.jobs import Reports, run_worker
from benchmarks.harness.processes import JobFailedError
from ringar.cupy import device
from ringar.errors import UnsupportedError

MULTI_RANK = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
"""Lets NCCL, from 2.30 on, have several ranks on one GPU."""


def count_gpus() -> int:
    """Counts the GPUs that this process sees.

    Raises:
        ImportError: CuPy is not installed.
        UnsupportedError: there are none.
    """
    return int(device.load("allreduce").cuda.runtime.getDeviceCount())


def environment(ranks: int, gpus: int) -> dict[str, str]:
    """Returns the variables that the ranks get beyond those of this process."""
    return MULTI_RANK if ranks > gpus else {}


def run_ranks(
    ranks: int, options: dict[str, Any], deadline: float, env: dict[str, str]
) -> Reports:  # fmt: skip
    """Runs `benchmarks.gpu.worker` and returns the reports of its ranks.

    Raises:
        JobFailedError: the job failed.
    """
    return run_worker("benchmarks.gpu.worker", options, ranks, deadline=deadline, env=env)


def heading(collective: str, reports: Reports, host: dict[str, Any], gpus: int) -> list[str]:
    """Returns the lines that say where the figures come from."""
    cards = Counter(r["gpu"]["bus"] for r in reports)
    names = ", ".join(dict.fromkeys(r["gpu"]["card"] for r in reports))
    on_each = ", ".join(str(count) for count in sorted(set(cards.values())))
    gpu = reports[0]["gpu"]
    lines = [
        f"{collective} on {len(reports)} ranks, {on_each} to a card: {len(cards)} x {names}",
        f"driver {gpu['driver']} (CUDA {gpu['cuda_of_driver']}), CuPy {gpu['cupy']} "
        f"(CUDA {gpu['cuda_of_cupy']}), NCCL {gpu['nccl']}, {host['time']}",
        machine.headline(host),
    ]
    if environment(len(reports), gpus):
        lines.append(f"more ranks than GPUs: {'='.join(*MULTI_RANK.items())} was set")
    return lines


def text(
    reports: Reports, all_rows: list[dict[str, Any]], options: dict[str, Any], lines: list[str]
) -> str:  # fmt: skip
    """Returns the text of all tables."""
    collective = options["collective"]
    requested_sizes = {case.bytes for case in gpu_cases.sizes(options, len(reports))}
    plain = [row for row in all_rows if row["arrays"] == 1 and row["bytes"] in requested_sizes]
    group = [row for row in all_rows if row["arrays"] > 1]
    if group:
        size = group[0]["bytes"]
        group += [row for row in all_rows if row["arrays"] == 1 and row["bytes"] == size]
    parts = [
        "".join(f"# {line}\n" for line in lines)
        + f"# size: {DEFINITIONS[collective].size_is}; medians of {options['rounds']} rounds",
        "Throughput, many calls enqueued and waited for once:",
        gpu_report.throughput_table(plain),
        "Latency, each call waited for; and of throughput, out of place, the time that enqueueing "
        "takes and the time between CUDA events:",
        gpu_report.latency_table(plain),
    ]
    if group:
        parts += [
            f"{group[0]['arrays']} gradients of ResNet-50, in one call, and one array of their "
            "bytes:",
            gpu_report.throughput_table(group),
            gpu_report.latency_table(group),
        ]
    reasons = {PEERS[name].title: why for name, why in reports[0]["missing"].items()}
    if reasons:
        parts.append(report.missing_lines(reasons).rstrip())
    goals = gpu_report.targets(all_rows, len(reports))
    if goals:
        parts.append(targets.table(goals))
    return "\n\n".join(parts)


def refusal(ranks: int, dtype: str, names: list[str]) -> str:
    """Returns why these arguments cannot be measured, or an empty string."""
    unknown_names = [name for name in names if name not in PEERS]
    if unknown_names:
        return f"peers on GPUs are {', '.join(PEERS)}. Received: {', '.join(unknown_names)}"
    most = gpu_cases.most_ranks(dtype)
    if ranks > most:
        return f"sums of {dtype} are exact up to {most} ranks. Received: {ranks}"
    return ""


def compare(arguments: argparse.Namespace, sizes: list[int], names: list[str], program: str) -> int:
    """Measures with the options of `benchmarks.collectives` and returns the exit code."""
    try:
        gpus = count_gpus()
    except (ImportError, UnsupportedError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    ranks = gpus if arguments.num_proc is None else arguments.num_proc
    if why := refusal(ranks, arguments.dtype, names):
        print(f"{program}: {why}", file=sys.stderr)
        return 2
    options = {"collective": arguments.collective, "dtype": arguments.dtype, "sizes": sizes,
               "rounds": arguments.rounds, "budget_bytes": arguments.budget,
               "peers": names}  # fmt: skip
    env = environment(ranks, gpus)
    print(f"{ranks} ranks on {gpus} GPUs, {options['rounds']} rounds of {', '.join(names)}",
          *(f"{key}={value}" for key, value in env.items()), sep="; ", file=sys.stderr)  # fmt: skip
    try:
        reports = run_ranks(ranks, options, arguments.limit * options["rounds"], env)
    except JobFailedError as error:
        print(f"{program}: the job has failed: {error}", file=sys.stderr)
        return 1
    all_rows = gpu_report.rows(reports, gpu_cases.cases(options, ranks))
    host = machine.describe()
    print(text(reports, all_rows, options, heading(options["collective"], reports, host, gpus)))
    reasons = reports[0]["missing"]
    if arguments.output:
        goals = [target.row() for target in gpu_report.targets(all_rows, ranks)]
        report.write_json(arguments.output, {
            "machine": host, "gpus": [r["gpu"] for r in reports], "ranks": ranks,
            "environment": env, "options": options, "rows": all_rows, "missing": reasons,
            "targets": goals})  # fmt: skip
    errors = gpu_report.wrong_elements(all_rows)
    if errors:
        print(f"{errors} wrong elements", file=sys.stderr)
    if "ringar" in reasons:
        print(f"{program}: ringar was not measured: {reasons['ringar']}", file=sys.stderr)
    return 1 if errors or "ringar" in reasons else 0


def main(arguments: list[str] | None = None) -> int:
    from benchmarks.collectives import __main__ as collectives

    arguments = sys.argv[1:] if arguments is None else arguments
    return collectives.main(["--device", "gpu", *arguments], "benchmarks.gpu", __doc__)


if __name__ == "__main__":
    sys.exit(main())
