"""How would training scale beyond the hosts that there are? Predicted from the cost model.

    python -m benchmarks.simulate
    python -m benchmarks.simulate --models vgg16 --gbits 100 --ranks-per-host 8 --output build/vgg
    python -m benchmarks.simulate --parameters 60e6 --step 0.4 --cost-model measured.json
    python -m benchmarks.simulate --check build/bench-hosts.json

Prints, for up to 10,000 ranks, how long an allreduce of all gradients takes by each algorithm, how
long a training step takes whose buckets travel beside the backward pass (simulate/prediction.py
says how it is computed and what is left out), and the efficiency against ranks that do not
communicate. Also the control messages: how long the handshake of a collective takes, and the
exchange of row counts before an all-gather. Then compares what the same model says of Horovod's
published scaling on 16, 128 and 512 GPUs with what was published (simulate/published.py has sources
and assumptions). The defaults are those machines: 4 GPUs per server, 25 Gbit/s.

`--check FILE` compares predicted with measured allreduce times of 2, 4 and 8 hosts, in the form
that simulate/measured.py describes.

Exits with 1 where a prediction is too far from what was published (5 points) or measured (15%).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

from benchmarks.harness import command, report
from benchmarks.harness.command import parse_size
from benchmarks.simulate import measured, published
from benchmarks.simulate.networks import NETWORKS, uniform
from benchmarks.simulate.plot import plot
from benchmarks.simulate.prediction import Workload, predict
from ringar import cost_model
from ringar.job.cost_model import Parameters
from ringar.keras.buckets import DEFAULT_FIRST_BUCKET_BYTES

RANKS = "1,4,8,16,32,64,128,256,512,1024,2048,4096,10000"


def positive(text: str) -> float:
    """Reads a number above 0, as an option's type."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, received {text!r}")
    return value


def parser() -> argparse.ArgumentParser:
    cli = command.parser("benchmarks.simulate", __doc__, "writes OUTPUT.json and OUTPUT.png")
    add = cli.add_argument
    add("--models", default=",".join(NETWORKS), help="default %(default)s, on the GPUs published")
    add("--parameters", type=positive, help="instead: trainable parameters of your model")
    add("--step", type=positive, help="and seconds of its step on one rank")
    add("--ranks", default=RANKS, help="default %(default)s")
    add("--ranks-per-host", type=int, default=published.RANKS_PER_HOST, help="default %(default)s")
    add("--algorithms", default=",".join(cost_model.ALGORITHMS[1:]), help="default %(default)s")
    network = cli.add_argument_group("network and hosts")
    add = network.add_argument
    default = published.parameters()
    add("--cost-model", help="reads the rest of these from a file, as RINGAR_COST_MODEL does")
    add("--gbits", type=positive, default=25.0, help="rate of a host's link, Gbit/s (default 25)")
    add("--efficiency", type=positive, default=published.EFFICIENCY,
        help="the part of it that payload gets (default %(default)s)")  # fmt: skip
    add("--latency", type=positive, default=default.latency, help="s (default %(default)s)")
    add("--reduction", type=positive, default=default.reduction, help="bytes/s added by a rank")
    add("--local-latency", type=positive, default=default.local_latency, help="s, within a host")
    add("--local-bandwidth", type=positive, default=default.local_bandwidth,
        help="bytes/s copied by a rank within a host")  # fmt: skip
    overlap = cli.add_argument_group("overlap with the backward pass")
    add = overlap.add_argument
    add("--bucket", type=parse_size, help="as in 8M; default: by the hosts and the network")
    add("--first-bucket", type=parse_size, default=DEFAULT_FIRST_BUCKET_BYTES, help="1M")
    add("--no-overlap", action="store_true", help="buckets leave after the backward pass")
    add("--contention", type=float, default=published.CONTENTION,
        help="part of its speed that computing loses meanwhile (default %(default)s)")  # fmt: skip
    cli.add_argument("--check", metavar="FILE", help="compares with measured times, nothing else")
    return cli


def network_of(options: argparse.Namespace) -> Parameters:
    """Returns the cost model's parameters."""
    if options.cost_model:
        return cost_model.load(options.cost_model)
    return Parameters(
        options.latency,
        options.efficiency * options.gbits * 1e9 / 8,
        options.reduction,
        options.local_latency,
        options.local_bandwidth,
    )


def workloads(options: argparse.Namespace) -> dict[str, Workload]:
    """Returns the workloads by name.

    Raises:
        ValueError: if a model is not known, or a model of one's own lacks its time.
    """
    if not 0 <= options.contention < 1:
        raise ValueError(f"--contention: expected 0 to below 1, received {options.contention}")
    if options.parameters:
        if not options.step:
            raise ValueError("--parameters needs --step: how long a step takes on one rank")
        name = f"{options.parameters / 1e6:.4g} M parameters"
        models = {name: Workload(uniform(int(options.parameters)), options.step)}
    else:
        if unknown_names := set(options.models.split(",")) - set(NETWORKS):
            raise ValueError(f"--models: expected {', '.join(NETWORKS)}, received {unknown_names}")
        models = {name: published.workload(name) for name in options.models.split(",")}
        if options.step:
            models = {
                name: replace(workload, seconds=options.step) for name, workload in models.items()
            }
    return {
        name: replace(workload, bucket=options.bucket, overlap=not options.no_overlap,
                      first_bucket=min(options.bucket or options.first_bucket,
                                       options.first_bucket),
                      contention=options.contention)
        for name, workload in models.items()
    }  # fmt: skip


def rows(
    models: dict[str, Workload], network: Parameters, ranks: list[int], local: int, names: list[str]
) -> list[dict[str, Any]]:
    """Returns plain data, a row per model, number of ranks and algorithm."""
    table = []
    for model, workload in models.items():
        for n in ranks:
            hosts, per_host = max(1, n // local), min(n, local)
            for name in names:
                step = predict(workload, network, n, local, name)
                once = cost_model.allreduce_seconds(
                    network, workload.gradient_bytes, hosts, per_host, name
                )
                table.append(
                    {"model": model, "ranks": n, "hosts": hosts, "algorithm": name,
                     "bytes": workload.gradient_bytes, "allreduce": once, "step": step.total,
                     "communicate": step.communicate, "compute": step.compute,
                     "efficiency": step.efficiency}
                )  # fmt: skip
    return table


def table_text(table: list[dict[str, Any]]) -> str:
    """Returns a line per model and number of ranks: allreduce and efficiency by algorithm."""
    names = list(dict.fromkeys(row["algorithm"] for row in table))
    cases: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for row in table:
        cases.setdefault((row["model"], row["ranks"]), {})[row["algorithm"]] = row
    headers = ["model", "ranks", "hosts", *(f"allreduce, {name}" for name in names),
               *(f"efficiency, {name}" for name in names)]  # fmt: skip
    lines = [
        [model, ranks, by[names[0]]["hosts"]]
        + [report.time_text(by[name]["allreduce"]) for name in names]
        + [f"{by[name]['efficiency']:.1%}" for name in names]
        for (model, ranks), by in cases.items()
    ]
    return report.table(headers, lines)


def control_text(parameters: Parameters, ranks: list[int], local: int) -> str:
    """Returns a line per number of ranks: times of control messages, size of buckets."""
    lines = []
    for n in ranks:
        network = cost_model.Network(parameters, max(1, n // local), min(n, local))
        lines.append(
            [n, report.time_text(network.handshake()),
             report.time_text(network.exchange_rows()),
             report.size_text(cost_model.bucket_bytes(network))]
        )  # fmt: skip
    headers = ["ranks", "handshake", "exchange of row counts", "size of buckets"]
    return f"\n{report.table(headers, lines)}"


def published_text(comparisons: list[published.Comparison]) -> str:
    """Returns the predicted beside the published efficiencies."""
    headers = ["model", "GPUs", "published", "predicted", "within 5 points"]
    lines = [
        [c.model, c.gpus, f"{c.published:.1%}", f"{c.predicted.efficiency:.1%}",
         "yes" if c.within else "no"]
        for c in comparisons
    ]  # fmt: skip
    title = "Horovod, 4 Pascal GPUs per server, 25 Gbit/s, ring over all GPUs, 64 MiB buckets:"
    return f"\n{title}\n\n{report.table(headers, lines)}"


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        if options.check:
            text, good = measured.check(options.check)
            print(text)
            return 0 if good else 1
        network, models = network_of(options), workloads(options)
        ranks = [int(n) for n in options.ranks.split(",")]
        names = options.algorithms.split(",")
        if unknown_names := set(names) - set(cost_model.ALGORITHMS):
            raise ValueError(f"--algorithms: expected {', '.join(cost_model.ALGORITHMS)}, "
                             f"received {', '.join(unknown_names)}")  # fmt: skip
        table = rows(models, network, ranks, options.ranks_per_host, names)
    except ValueError as error:
        print(f"benchmarks.simulate: {error}", file=sys.stderr)
        return 2
    print(f"# {network}, {options.ranks_per_host} ranks per host\n")
    print(table_text(table))
    print(control_text(network, ranks, options.ranks_per_host))
    comparisons = published.compare()
    print(published_text(comparisons))
    if options.output:
        report.write_json(options.output, {
            "parameters": vars(network), "ranks_per_host": options.ranks_per_host, "rows": table,
            "published": [{"model": c.model, "gpus": c.gpus, "published": c.published,
                           "predicted": c.predicted.efficiency} for c in comparisons]
        })  # fmt: skip
        plot(options.output, table, comparisons)
    return 0 if all(comparison.within for comparison in comparisons) else 1


if __name__ == "__main__":
    sys.exit(main())
