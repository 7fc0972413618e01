"""How long does a collective take, against other libraries and against a plain memcpy?

    python -m benchmarks.collectives --collective allgather -np 2
    python -m benchmarks.collectives --collective alltoall --peers ringar_engine,openmpi

Peers are run in turn, several rounds of each, so that a noisy minute hits all of them. Every result
is checked in the run that is timed; a wrong element makes the exit code 1. Peers that lack a
collective, cannot be installed, crash or hang are named, and the others go on. On GPUs
(`--device gpu`) the peers are NCCL through CuPy and a copy on the device: benchmarks/gpu.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import peers
from benchmarks.collectives.measure import LIMIT, collect
from benchmarks.collectives.plot import plot
from benchmarks.collectives.report import rows, table_text
from benchmarks.harness import command, machine, report, results
from benchmarks.harness.command import parse_size
from benchmarks.harness.definitions import DEFINITIONS

DEFAULT_SIZES = ("4", "1K", "4K", "64K", "256K", "1M", "4M", "16M", "64M", "256M")
DEFAULT_PEERS = (
    "ringar_engine", "ringar_in_place", "ringar_op", "empty_op", "memcpy", "openmpi", "mpich",
    "intelmpi",
)  # fmt: skip
GPU_PEERS = ("ringar", "nccl", "copy")


def parse_arguments(
    arguments: list[str], program: str, about: str | None
) -> tuple[argparse.Namespace, list[int], list[str]]:
    """Returns the options, the sizes, and the peers: names, and absolute paths of files."""
    size_texts = "; ".join(
        f"{name}: {definition.size_is}" for name, definition in DEFINITIONS.items()
    )
    parser = command.parser(program, about, "writes OUTPUT.json, and OUTPUT.png (CPUs)")
    parser.add_argument(
        "--collective", choices=list(DEFINITIONS), default="allreduce", help="default %(default)s"
    )
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="default cpu")
    parser.add_argument(
        "-np", "--num-proc", type=int, help="ranks (default 2; on GPUs as many as there are)"
    )
    parser.add_argument(
        "--sizes",
        default=",".join(DEFAULT_SIZES),
        help=f"bytes, as in 4K,64M, counted as nccl-tests counts them ({size_texts})",
    )
    parser.add_argument(
        "--dtype", choices=("float32", "float16"), default="float32", help="float16: on GPUs only"
    )
    parser.add_argument(
        "--peers",
        help=f"of {', '.join(peers.names())}, or files (default: {','.join(DEFAULT_PEERS)}); "
        f"on GPUs of {', '.join(GPU_PEERS)} (default: all)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each peer (default 3)")
    parser.add_argument(
        "--budget", type=parse_size, default=parse_size("2G"), metavar="BYTES",
        help="how many bytes to communicate per size and turn, which sets the number of calls",
    )  # fmt: skip
    parser.add_argument(
        "--limit", type=float, default=LIMIT, metavar="SECONDS",
        help="for each turn of a peer, on GPUs for each round of all (default %(default)s); what "
        "needs more is stopped",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    on_gpus = options.device == "gpu"
    if options.dtype != "float32" and not on_gpus:
        parser.error(f"--dtype {options.dtype} needs --device gpu")
    peer_names = (
        options.peers.split(",") if options.peers else GPU_PEERS if on_gpus else DEFAULT_PEERS
    )
    names = [str(Path(name).resolve()) if name.endswith(".py") else name for name in peer_names]
    try:
        for name in () if on_gpus else names:
            peers.load(name)
        return options, [parse_size(size) for size in options.sizes.split(",")], names
    except (argparse.ArgumentTypeError, ValueError) as error:
        parser.error(str(error))


def main(
    arguments: list[str] | None = None,
    program: str = "benchmarks.collectives",
    about: str | None = __doc__,
) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    options, sizes, names = parse_arguments(arguments, program, about)
    if options.device == "gpu":
        from benchmarks.gpu import __main__ as gpu

        return gpu.compare(options, sizes, names, program)
    collective = options.collective
    ranks = 2 if options.num_proc is None else options.num_proc
    outcome = collect(
        collective, names, ranks, sizes, options.rounds, options.budget, options.limit
    )
    table = rows(outcome.series, ranks, names, collective)
    host = machine.describe()
    print(f"# {collective} on {ranks} ranks: {machine.headline(host)}")
    print(f"# size: {DEFINITIONS[collective].size_is}; times are medians of {options.rounds} turns")
    print(table_text(table))
    titles = {peers.load(name).TITLE: why for name, why in outcome.reasons.items()}
    print(report.missing_lines(titles), end="")
    data = {
        "tried": {"peers": names, "sizes": sizes},
        "ranks": ranks,
        "rows": table,
        "peers": outcome.versions,
        "missing": outcome.reasons,
    }
    results.keep(f"{collective}-{ranks}-ranks", host, data, options.output)
    if options.output:
        plot(options.output, table, ranks)
    errors = sum(row["wrong"] for row in table)
    if errors:
        print(f"{errors} wrong elements", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
