"""How many images per second do N ranks train, against N times those of one?

    python -m benchmarks.training.scaling
    python -m benchmarks.training.scaling --models alexnet,resnet50 --ranks 1,2 --output build/scaling

Weak scaling, as in Horovod's paper: one thread and one batch per rank, so that the work grows with
the ranks and ideal is a straight line. The weights of all ranks are compared after each run; a
difference, or a case that fails, makes the exit code 1. "plain" is as many plain Keras processes
side by side: what the machine gives to N processes that do not communicate, since cores share
caches and memory.

"predicted" is what the cost model (`ringar.cost_model`) says: the measured step of one rank, and
after it an allreduce of the model's gradients in shared memory, whose latency and rate are taken
from an allreduce of 4 KiB and one of 64 MiB on two ranks, measured first. Nothing overlaps, since
a collective on one machine is work of the same cores, and ranks beyond the cores share them. What
lies between predicted and plain is not communication.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from benchmarks.collectives import __main__ as collectives
from benchmarks.harness import machine, report
from benchmarks.harness.series import Series
from benchmarks.training.__main__ import failures
from benchmarks.training.jobs import train
from benchmarks.training.models import GRADIENT_BYTES, MODELS
from ringar import cost_model
from ringar.cost_model import Parameters

SHORT, LONG = 4 << 10, 64 << 20
"""Bytes of the allreduces that latency and rate are taken from."""


def host_parameters(short: float, long: float) -> Parameters:
    """The model's parameters of one host whose two ranks took so long for SHORT and LONG bytes.

    A short allreduce is two waits. A long one copies half of the array twice and adds it once, at
    one rate here, since both are the memory's. Nothing is known of other hosts: they are taken to
    be as near as the next rank.
    """
    latency = short / 2
    rate = 3 * LONG / 2 / (long - short)
    return Parameters(latency, rate, rate, latency, rate)


def measure_host() -> Parameters | None:
    """Those of this machine; None if an allreduce on two ranks cannot be measured."""
    found = collectives.collect("allreduce", ["ringar_engine"], 2, [SHORT, LONG], 1, 1 << 30)
    times = [found.series.get(("ringar_engine", size)) for size in (SHORT, LONG)]
    short, long = (one.seconds if one else 0.0 for one in times)
    return host_parameters(short, long) if 0 < short < long else None


def collect(
    models: list[str], ranks: list[int], rounds: int
) -> dict[tuple[str, int, bool], Series]:
    """Measures every model and number of ranks in turn, ``rounds`` times."""
    cases = [(m, n, ringar) for m in models for n in ranks for ringar in (False, True)]
    found = {case: Series() for case in cases}
    for number in range(rounds):
        for (model, n, with_ringar), result in found.items():
            what = "ringar" if with_ringar else "plain"
            print(f"round {number + 1} of {rounds}: {model}, {n} x {what}", file=sys.stderr)
            train(model, n, result, with_ringar=with_ringar)
    return found


def predicted_rate(
    parameters: Parameters, model: str, ranks: int, alone: float, cores: int
) -> float:
    """Images/s of all ranks, given the seconds of a step of one that communicates with none."""
    turns = max(1.0, ranks / cores)
    exchange = cost_model.local_allreduce(parameters, GRADIENT_BYTES[model], ranks)
    return ranks * MODELS[model][1] / (turns * (alone + exchange))


def rows(
    found: dict[tuple[str, int, bool], Series],
    parameters: Parameters | None = None,
    cores: int | None = None,
) -> list[dict[str, Any]]:
    """Plain data, a row per case that ended well; with parameters also what they predict."""
    table = []
    for (model, n, with_ringar), result in found.items():
        alone = found.get((model, 1, False))
        if not result.rounds or alone is None or not alone.rounds:
            continue
        batch = MODELS[model][1]
        rate = n * batch / result.seconds
        ideal = n * batch / alone.seconds
        summary = result.summary()
        table.append(
            {"model": model, "ranks": n, "ringar": with_ringar, "batch": batch, "rate": rate,
             "rate_min": n * batch / summary["max"], "rate_max": n * batch / summary["min"],
             "ideal": ideal, "efficiency": rate / ideal, **summary}
        )  # fmt: skip
        if parameters:
            cores = cores or len(os.sched_getaffinity(0))
            table[-1]["predicted"] = predicted_rate(parameters, model, n, alone.seconds, cores)
    return table


def print_table(table: list[dict[str, Any]]) -> None:
    """Images per second and efficiency."""
    headers = ["model", "ranks", "with", "images/s", "min", "max", "ideal", "efficiency",
               "predicted", "#wrong"]  # fmt: skip
    lines = [
        [row["model"], row["ranks"], "ringar" if row["ringar"] else "plain, no communication"]
        + [f"{row[key]:.4g}" for key in ("rate", "rate_min", "rate_max", "ideal")]
        + [f"{row['efficiency']:.1%}"]
        + [f"{row['predicted']:.4g}" if row["ringar"] and "predicted" in row else "", row["wrong"]]
        for row in table
    ]
    print(report.table(headers, lines))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", default="mlp,small_cnn,alexnet", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--ranks", default="1,2", help="numbers of ranks (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", default=None, help="writes OUTPUT.json and OUTPUT.png")
    options = parser.parse_args(arguments)
    ranks = [int(n) for n in options.ranks.split(",")]
    if 1 not in ranks:
        parser.error("--ranks must contain 1, which ideal is taken from")
    parameters = measure_host() if max(ranks) > 1 else None
    found = collect(options.models.split(","), ranks, options.rounds)
    table = rows(found, parameters)
    here = machine.describe()
    print(f"# scaling: {machine.headline(here)}")
    print_table(table)
    missing = failures(found)
    print(report.missing_lines(missing), end="")
    if options.output:
        report.write_json(options.output, {
            "machine": here, "rows": table, "missing": missing,
            "parameters": vars(parameters) if parameters else None})  # fmt: skip
        report.plot_scaling(options.output, table)
    return 1 if missing or any(row["wrong"] for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
