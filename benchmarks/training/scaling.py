"""How many images per second do N ranks train, against N times those of one?

    python -m benchmarks.training.scaling
    python -m benchmarks.training.scaling --models alexnet,resnet50 --output build/scaling

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

import os
import sys
from typing import Any

from benchmarks.collectives import measure
from benchmarks.harness import command, machine, report, results
from benchmarks.harness.series import Series
from benchmarks.training.jobs import Case, cases, collect, failures, title
from benchmarks.training.models import GRADIENT_BYTES, MODELS
from benchmarks.training.plot import plot_scaling
from ringar import cost_model
from ringar.job.cost_model import Parameters

SHORT, LONG = 4 << 10, 64 << 20
"""Bytes of the allreduces that latency and rate are taken from."""


def host_parameters(short: float, long: float) -> Parameters:
    """Returns the cost model's parameters of a host, given the times of SHORT and LONG bytes.

    A short allreduce is two waits. A long one copies half of the array twice and adds it once, at
    one rate here, since both are the memory's. Nothing is known of other hosts: they are taken to
    be as near as the next rank.
    """
    latency = short / 2
    rate = 3 * LONG / 2 / (long - short)
    return Parameters(latency, rate, rate, latency, rate)


def measure_host() -> Parameters | None:
    """Returns this machine's parameters, or None if no allreduce on two ranks can be measured."""
    outcome = measure.collect("allreduce", ["ringar_engine"], 2, [SHORT, LONG], 1, 1 << 30)
    times = [outcome.series.get(("ringar_engine", size)) for size in (SHORT, LONG)]
    short, long = (series.seconds if series else 0.0 for series in times)
    return host_parameters(short, long) if 0 < short < long else None


def predicted_rate(
    parameters: Parameters, model: str, ranks: int, step_seconds: float, cores: int
) -> float:
    """Returns images/s of all ranks, given the seconds of a step of one rank alone."""
    turns = max(1.0, ranks / cores)
    exchange = cost_model.Network(parameters, 1, ranks).local_allreduce(GRADIENT_BYTES[model])
    return ranks * MODELS[model][1] / (turns * (step_seconds + exchange))


def rows(
    outcome: dict[Case, Series],
    parameters: Parameters | None = None,
    cores: int | None = None,
) -> list[dict[str, Any]]:
    """Returns plain data, a row per case that succeeded; `parameters` add predictions."""
    table = []
    for (model, n, with_ringar), result in outcome.items():
        base = outcome.get((model, 1, False))
        if not result.rounds or base is None or not base.rounds:
            continue
        batch = MODELS[model][1]
        rate = n * batch / result.seconds
        ideal = n * batch / base.seconds
        summary = result.summary()
        table.append(
            {"model": model, "ranks": n, "ringar": with_ringar, "batch": batch, "rate": rate,
             "rate_min": n * batch / summary["max"], "rate_max": n * batch / summary["min"],
             "ideal": ideal, "efficiency": rate / ideal, **summary}
        )  # fmt: skip
        if parameters:
            cores = cores or len(os.sched_getaffinity(0))
            table[-1]["predicted"] = predicted_rate(parameters, model, n, base.seconds, cores)
    return table


def table_text(table: list[dict[str, Any]]) -> str:
    """Returns images per second and efficiency."""
    headers = ["model", "ranks", "with", "images/s", "min", "max", "ideal", "efficiency",
               "predicted", "#wrong"]  # fmt: skip
    lines = [
        [row["model"], row["ranks"], "ringar" if row["ringar"] else "plain, no communication"]
        + [f"{row[key]:.4g}" for key in ("rate", "rate_min", "rate_max", "ideal")]
        + [f"{row['efficiency']:.1%}"]
        + [f"{row['predicted']:.4g}" if row["ringar"] and "predicted" in row else "", row["wrong"]]
        for row in table
    ]
    return report.table(headers, lines)


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser(
        "benchmarks.training.scaling", __doc__, "writes OUTPUT.json and OUTPUT.png"
    )
    parser.add_argument("--models", default="mlp,small_cnn,alexnet", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--ranks", default="1,2", help="numbers of ranks (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args(arguments)
    ranks = [int(n) for n in options.ranks.split(",")]
    if 1 not in ranks:
        parser.error("--ranks must contain 1, which ideal is taken from")
    parameters = measure_host() if max(ranks) > 1 else None
    outcome = collect(cases(options.models.split(","), ranks), options.rounds)
    table = rows(outcome, parameters)
    host = machine.describe()
    print(f"# scaling: {machine.headline(host)}")
    print(table_text(table))
    reasons = failures(outcome)
    print(report.missing_lines(reasons), end="")
    data = {
        "tried": {"cases": list(map(title, outcome))},
        "rows": table,
        "missing": reasons,
        "parameters": vars(parameters) if parameters else None,
    }
    results.keep("scaling", host, data, options.output)
    if options.output:
        plot_scaling(options.output, table)
    return 1 if reasons or any(row["wrong"] for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
