"""How far from ideal do the ranks of a job train: on one host, on many, wherever they were started?

    python -m benchmarks.scaling --output build/scaling
    ringarrun -np 8 python -m benchmarks.scaling --models resnet50 --output build/scaling
    ringarrun -H a:8,b:8 python -m benchmarks.scaling --output build/scaling
    mpirun -np 16 python -m benchmarks.scaling       (and srun)
    sbatch benchmarks/scaling/slurm.sbatch
    python -m benchmarks.scaling --namespaces --rates 100mbit,1gbit --output build/links

Without a launcher it starts ringarrun, with a rank per core. One start measures all: 1, 2, 4, ...
ranks of the first host, and when that is full 1, 2, 4, ... full hosts, by process sets; the other
ranks wait. The table says how many hosts a case has. Weak scaling: the same batch on each rank;
strong scaling: the same batch on all together. Ideal is a plain Keras step on one rank, times the
ranks. "Side by side" are as many plain steps at once, without an exchange: what the machine gives
to ranks that share cores, caches and memory. "Communication" is the part of a step by which the
exchange makes it longer; "under way" the part in which rank 0's timeline has an exchange, hidden
behind the backward pass or not. "Predicted" is the cost model's (`ringar.cost_model`), from the
step of one rank alone and latencies and rates that this job measures before anything else.

All kinds of steps take turns; figures are medians of the rounds, with the least and the greatest.
The weights of all ranks of a case are compared in the run that is timed. Ranks whose weights
differ, or a job that fails, make the exit code 1. Rank 0 prints the table, and writes OUTPUT.json,
OUTPUT.md and OUTPUT.png.

With --namespaces (root, iproute2) the hosts are network namespaces of this machine behind links of
the --rates; all share its cores.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import command, launch, machine, report, results
from benchmarks.harness.jobs import Command, run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.scaling import report as scaling
from benchmarks.scaling import worker
from benchmarks.scaling.plot import draw
from benchmarks.training.models import MODELS
from ringar.job import mpi

WORKER = "benchmarks.scaling.worker"
LIMIT = 3600.0
DEFAULT_MODELS, MODELS_OF_NAMESPACES = "mlp,small_cnn,resnet50", "small_cnn"
UNITS = {"mbit": 1.0, "gbit": 1e3}


def rate_mbit(text: str) -> float:
    """Returns the Mbit/s of a rate such as 100mbit or 10gbit."""
    number, unit = text[:-4], text[-4:].lower()
    if unit not in UNITS or not number.replace(".", "", 1).isdigit() or not float(number):
        raise argparse.ArgumentTypeError(f"expected a rate such as 100mbit, received {text!r}")
    return float(number) * UNITS[unit]


def numbers(text: str) -> list[int]:
    """Returns numbers of hosts such as 1,2,4."""
    words = text.split(",")
    if not all(word.isdigit() and int(word) for word in words):
        raise argparse.ArgumentTypeError(f"expected numbers such as 1,2,4, received {text!r}")
    return [int(word) for word in words]


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    cli = command.parser(
        "benchmarks.scaling", __doc__, "writes OUTPUT.json, OUTPUT.md and OUTPUT.png"
    )
    add = cli.add_argument
    add("--models", help=f"of {','.join(MODELS)} (default {DEFAULT_MODELS}; with --namespaces "
        f"{MODELS_OF_NAMESPACES})")  # fmt: skip
    add("--rounds", type=int, default=3, help="turns of each case (default %(default)s)")
    add("--seconds", type=float, default=0.5, help="of a turn, at least a step (%(default)s)")
    add("--threads", type=int, default=1, help="of TensorFlow per rank (default %(default)s)")
    add("--batch", type=int, help="images of a rank, with strong scaling of all (the model's)")
    add("-np", "--num-proc", type=int, help="ranks, without a launcher (default: one per core)")
    links = cli.add_argument_group("hosts that are network namespaces")
    links.add_argument("--namespaces", action="store_true", help="makes them, as root")
    links.add_argument("--hosts", type=numbers, default="1,2,4,8", help="default %(default)s")
    links.add_argument("--ranks-per-host", type=int, default=1, help="default %(default)s")
    links.add_argument("--rates", type=lambda text: [rate_mbit(rate) for rate in text.split(",")],
                       default="100mbit,1gbit,10gbit", help="default %(default)s")  # fmt: skip
    return cli


def settings(
    models: list[str],
    rounds: int = 3,
    seconds: float = 0.5,
    threads: int = 1,
    batch: int | None = None,
) -> dict[str, Any]:
    """Returns the options of `benchmarks.scaling.worker` on links as they are."""
    return {"models": models, "rounds": rounds, "seconds": seconds, "threads": threads,
            "batch": batch, "rates": [None]}  # fmt: skip


def is_launched() -> bool:
    """Returns whether this process is a rank that a launcher has started."""
    return "RINGAR_RANK" in os.environ or mpi.started_by_mpi(os.environ)


def run(options: dict[str, Any], ranks: int, start: Command = launch.ringarrun) -> dict[str, Any]:
    """Measures in a job of its own, on this machine.

    Raises:
        JobFailedError: the job failed.
    """
    reports = run_worker(WORKER, options, ranks, deadline=LIMIT, command=start)
    data: dict[str, Any] = next(r["data"] for r in reports if r["data"])
    return {**data, "machine": machine.describe()}


def run_on_namespaces(
    options: dict[str, Any], counts: list[int], ranks_per_host: int, rates: list[float]
) -> dict[str, Any]:
    """Measures on hosts that are network namespaces, by their numbers and rates of their links.

    Raises:
        JobFailedError: the job failed, or there can be no such hosts here.
    """
    from tests.hosts import JUMBO_MTU, Hosts, unavailable

    if reason := unavailable():
        raise JobFailedError(f"--namespaces: {reason}")
    with Hosts(max(counts), rate_mbit=rates[0], mtu=JUMBO_MTU) as namespaces:
        start = launch.on_hosts(namespaces, ranks_per_host, "tcp")
        job = {**options, "rates": rates, "hosts": counts}
        return run(job, max(counts) * ranks_per_host, start)


def finish(data: dict[str, Any], output: str | None) -> int:
    """Prints the table, writes the files of `output`, and returns the exit code."""
    table = scaling.rows(data)
    if output:
        report.write_json(output, {**data, "rows": table})
    text = f"# Scaling: {scaling.title(data)}\n\n{scaling.table_text(table)}\n"
    text += f"\n{scaling.network_text(data)}\n"
    print(text, flush=True)
    if output:
        Path(output).with_suffix(".md").write_text(text)
        draw(data, output)
    errors = sum(row["wrong"] for row in table)
    if errors:
        print(f"{errors} times a rank had other weights than rank 0", file=sys.stderr)
    return 1 if errors else 0


def recorded(data: dict[str, Any]) -> results.Run:
    """Returns a run for the figures of this kind of machine."""
    return {
        "tried": {"models": sorted(data["layers"]), "ranks": [c["ranks"] for c in data["cases"]],
                  "rates": [n["rate_mbit"] for n in data["networks"]]},
        "rows": scaling.rows(data), "missing": {}, "networks": data["networks"],
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Measures on the ranks that there are, or starts them."""
    cli = parser()
    options = cli.parse_args(arguments)
    default = MODELS_OF_NAMESPACES if options.namespaces else DEFAULT_MODELS
    models = (options.models or default).split(",")
    if unknown_names := sorted(set(models) - set(MODELS)):
        cli.error(f"--models: expected some of {', '.join(MODELS)}, received {unknown_names}")
    job = settings(models, options.rounds, options.seconds, options.threads, options.batch)
    if is_launched():
        _, data = worker.measure(job)
        return finish(data, options.output) if data else 0
    try:
        if options.namespaces:
            data = run_on_namespaces(job, options.hosts, options.ranks_per_host, options.rates)
        else:
            data = run(job, options.num_proc or len(os.sched_getaffinity(0)))
    except JobFailedError as error:
        print(f"benchmarks.scaling: {error}", file=sys.stderr)
        return 1
    name = "scaling-namespaces" if options.namespaces else "scaling"
    results.record(name, data["machine"], recorded(data))
    return finish(data, options.output)


if __name__ == "__main__":
    sys.exit(main())
