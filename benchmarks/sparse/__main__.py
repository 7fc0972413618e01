"""What does a sparse net send that is cut along its edges, and how fast does it train?

    python -m benchmarks.sparse --output build/sparse
    python -m benchmarks.sparse --only words,kernels
    python -m benchmarks.sparse --only speed --layers 4 --rounds 1

words    The words that ranks send per example forward, for four kinds of nets and three placements.
kernels  The native kernels and SciPy's products of one layer, one thread.
speed    Training steps of a net of planted communities (10^7 weights), on one rank with one and
         with two threads, and on two ranks with one thread each. The placement by hypergraph is
         kept in build/, since partitioning takes longer than the steps: partition first with
         `--only partition`.

Losses of the first steps must be those of one process, and the bytes that were sent those of the
partition's km1, forward and backward. Exits with 1 on wrong numbers or a job that failed; a missed
target changes nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import command, launch, machine, report, results
from benchmarks.harness import targets as bounds
from benchmarks.harness.jobs import run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.sparse import kernels, nets
from benchmarks.sparse.report import (
    Measured,
    Plan,
    count_errors,
    kernels_text,
    plans,
    speed_text,
    summary,
    targets,
    words_text,
)
from benchmarks.sparse.worker import read_partition, write_partition

PARTS, LIMIT = ("words", "kernels", "partition", "speed"), 600.0
WORDS = (2048, 6, 16)
"""The nets whose words are counted: neurons per layer, layers, inputs per neuron."""


def words(outcome: Measured, ranks: list[int]) -> None:
    """Adds the words of each net and placement."""
    from ringar.parallel import sparse

    for name in nets.NAMES:
        layers = nets.make_net(name, *WORDS)
        for parts in ranks:
            row: dict[str, Any] = {"net": name, "ranks": parts}
            row["neurons"] = sum(layer.shape[0] for layer in layers[:-1])
            for method in nets.METHODS:
                print(f"words: {name}, {parts} ranks, {method}", file=sys.stderr, flush=True)
                start = time.perf_counter()
                partition = sparse.partition(layers, parts, method)
                row[f"{method} seconds"] = time.perf_counter() - start
                loads = partition.loads(layers)
                row[method] = sum(partition.words(layers))
                row[f"{method} imbalance"] = float((loads.max(1) / loads.mean(1)).max()) - 1
            outcome.words.append(row)


def placed(net: list[Any], method: str, parts: int) -> Path:
    """Returns a file with the placement of the neurons of a net, made now if there is none."""
    from ringar.parallel import sparse

    name = "-".join(map(str, [*net[1:], parts, method]))
    path = machine.ROOT / "build" / "bench-sparse" / f"{name}.npz"
    if not path.exists():
        print(f"places the neurons: {method}", file=sys.stderr, flush=True)
        write_partition(path, sparse.partition(nets.make_net(*net), parts, method))
    assert read_partition(str(path)).parts == parts
    return path


def speed(outcome: Measured, chosen: dict[str, Plan], job: dict[str, Any]) -> None:
    """Adds the steps of each plan, in turns."""
    rounds = job["rounds"]
    reports: dict[str, list[Any]] = {}
    for number in range(rounds):
        for name, plan in chosen.items():
            if plan.title in outcome.reasons:
                continue
            print(f"round {number + 1} of {rounds}: {plan.title}", file=sys.stderr, flush=True)
            path = str(placed(job["net"], plan.method, plan.ranks)) if plan.ranks > 1 else ""
            options = {**job, "rounds": 1, "partition": path, "ranks": plan.ranks,
                       "threads": plan.threads, "kernel": plan.kernel}  # fmt: skip
            try:
                reports.setdefault(name, []).append(run_worker(
                    "benchmarks.sparse.worker", options, plan.ranks, deadline=LIMIT,
                    command=launch.one_process,
                ))  # fmt: skip
            except JobFailedError as error:
                outcome.reasons[plan.title] = str(error)
    for name, turns in reports.items():
        outcome.speed[name] = summary(chosen[name], turns, job["batch"])


def parser() -> argparse.ArgumentParser:
    result = command.parser(
        "benchmarks.sparse", __doc__, "writes OUTPUT.json, for benchmarks.sparse.plot"
    )
    add = result.add_argument
    add("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    add("--plans", default="", help=f"some of {','.join(plans())} (default: all)")
    add("--units", type=int, default=16384, help="neurons per layer (default %(default)s)")
    add("--layers", type=int, default=10, help="(default %(default)s)")
    add("--connections", type=int, default=64, help="inputs per neuron (default %(default)s)")
    add("--batch", type=int, default=64, help="examples of a step (default %(default)s)")
    add("--rounds", type=int, default=3, help="turns of each plan (default %(default)s)")
    add("--steps", type=int, default=6, help="timed steps of a turn (default %(default)s)")
    return result


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    parts = options.only.split(",")
    all_plans = plans()
    chosen = {
        name: all_plans[name] for name in (options.plans.split(",") if options.plans else all_plans)
    }
    outcome = Measured()
    net = [nets.NAMES[0], options.units, options.layers, options.connections]
    job = {"net": net, "batch": options.batch, "rounds": options.rounds, "steps": options.steps,
           "learning_rate": 0.05}  # fmt: skip
    if "words" in parts:
        words(outcome, [2, 4])
    if "kernels" in parts:
        outcome.kernels = kernels.rows()
    if "partition" in parts:
        placed(net, "hypergraph", 2)
    if "speed" in parts:
        speed(outcome, chosen, job)
    count = count_errors(outcome, options.batch)
    host = machine.describe()
    print(f"# Sparse nets, {machine.headline(host)}\n")
    for text in (words_text(outcome), kernels_text(outcome), speed_text(outcome)):
        print(text, end="\n\n" if text else "")
    print(bounds.table(targets(outcome)))
    print(report.missing_lines(outcome.reasons), end="")
    data = {
        "tried": {"parts": parts, "plans": list(chosen) if "speed" in parts else []},
        "missing": outcome.reasons,
        "job": job,
        "words": outcome.words,
        "kernels": outcome.kernels,
        "speed": outcome.speed,
        "wrong": count,
    }
    results.keep("sparse", host, data, options.output)
    if count:
        print(f"{count} losses or bytes are not those expected", file=sys.stderr)
    return 1 if count or outcome.reasons else 0


if __name__ == "__main__":
    sys.exit(main())
