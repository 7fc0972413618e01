"""The benchmarks behind docs/papers.md, in small forms, one after the other, within an hour.

    make papers                            all of them
    python -m benchmarks.papers strads     some of them

Each runs in a process of its own for at most five minutes, and prints its figures beside its
targets. Their files go to build/papers/: the figures of fewer rounds do not take the place of those
in benchmarks/results/. Those that install PyTorch or need root are left out. Exits with 1 if a
benchmark had a wrong result, failed or took too long.
"""

from __future__ import annotations

import runpy
import sys

from benchmarks.harness import command, machine, results
from benchmarks.harness.processes import JobFailedError, run_command

FOLDER = machine.ROOT / "build" / "papers"
LIMIT = 300.0  # seconds
COMMANDS = {
    "horovod": "benchmarks.simulate",
    "zero": "benchmarks.sharded --only time --models transformer --rounds 2",
    "downpour": "benchmarks.asynchronous.slow_rank --rounds 1",
    "alexnet": "benchmarks.split --rounds 1 --steps 1 --skip hosts",
    "distbelief": "benchmarks.partitioned --rounds 1 --steps 2 --small --skip large,memory",
    "ddg": "benchmarks.pipeline --rounds 1 --steps 8",
    "dni": "benchmarks.synthetic --ranks 2 --epochs 5 --only true,conditioned,zero",
    "bppsa": "benchmarks.scan --quick",
    "wavefront": "benchmarks.wavefront --batches 64 --chunks 10 --rounds 1",
    "spann": "benchmarks.sparse --only kernels",
    "strads": "benchmarks.scheduled --rows 200 --columns 400 --limit 2000",
}
"""The benchmark of each paper, with its arguments."""


def run_here(name: str) -> None:
    """Runs a benchmark in this process, which it ends."""
    module, *arguments = COMMANDS[name].split()
    FOLDER.mkdir(parents=True, exist_ok=True)
    results.FOLDER = FOLDER
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def run_apart(name: str) -> str:
    """Runs a benchmark in a process of its own; returns why it has no figures, or ""."""
    print(f"\n== {name}: python -m {COMMANDS[name]}\n", flush=True)
    job = [sys.executable, "-m", "benchmarks.papers", "--here", name]
    try:
        print(run_command(job, deadline=LIMIT), flush=True)
    except JobFailedError as error:
        print(error.output, flush=True)
        return f"{name}: {error}"
    return ""


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("benchmarks.papers", __doc__, output=None)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(COMMANDS)}; default: all")
    parser.add_argument("--here", action="store_true", help="one of them, in this process")
    options = parser.parse_args(arguments)
    unknown_names = set(options.names) - set(COMMANDS)
    if unknown_names or (options.here and len(options.names) != 1):
        parser.error(f"expected some of {', '.join(COMMANDS)}, received {' '.join(options.names)}")
    if options.here:
        run_here(options.names[0])
    faults = [fault for name in options.names or COMMANDS if (fault := run_apart(name))]
    print("\n" + "\n".join(faults or ["all benchmarks have run"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
