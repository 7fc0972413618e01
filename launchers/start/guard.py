"""The guard of one rank of a job that mpirun or srun starts: it runs the user's program.

    mpirun (or srun) -> on each host, for each rank: guard.py -> the program

The guard gives ranks on other hosts what `ringarrun` gives ranks of a local job: CPUs and a GPU of
their own, whole lines of output with the rank in front, files of their output, and an end that
leaves no process behind. And it gives the other ranks time to report a failure
(`guard_failure_policy.py`).
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringar.launchers.errors import UsageError
from ringar.launchers.plan import cpus, gpus, job_plan
from ringar.launchers.plan.job_plan import JobPlan, RankPlan
from ringar.launchers.plan.program import check_executable
from ringar.launchers.plan.scheduler_hosts import counts
from ringar.launchers.start.fork import Fork
from ringar.launchers.supervise import signals
from ringar.launchers.supervise.guard_failure_policy import GuardFailurePolicy
from ringar.launchers.supervise.runner import Runner


@dataclass(frozen=True)
class Place:
    """Where mpirun or srun has put this rank."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    by_srun: bool = False


#: The variables of Open MPI, of hydra, and of srun. Those of srun come last: inside an allocation,
#: srun may have started the daemons of the other two.
_VARIABLES = (
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)


def place(environ: Mapping[str, str]) -> Place:
    """Return the place of this rank, by the variables that mpirun or srun has set.

    Raises:
        UsageError: neither of them has started this process.
    """
    for names in _VARIABLES:
        if all(name in environ for name in names):
            rank, size, local_rank, last = (environ[name] for name in names)
            by_srun = names[3].startswith("SLURM")
            if by_srun:
                last = str(list(counts(last))[int(environ.get("SLURM_NODEID", "0"))])
            # Two daemons on one machine, under two of its names, make Open MPI count each alone.
            local_size = max(int(last), int(local_rank) + 1)
            return Place(int(rank), int(size), int(local_rank), local_size, by_srun)
    raise UsageError(
        "expected the variables of a rank, as mpirun and srun set them "
        f"({', '.join(names[0] for names in _VARIABLES)}), received none of them; "
        "start the job with ringarrun"
    )


def make_plan(options: argparse.Namespace, position: Place) -> JobPlan:
    """Plan the job of the one rank."""
    usable = cpus.available()
    sets = job_plan.cpu_sets(options.bind_to, position.local_size, usable)
    gpu = gpus.of_ranks(os.environ, position.local_size)
    rank = RankPlan(
        rank=position.rank,
        size=position.size,
        local_rank=position.local_rank,
        local_size=position.local_size,
        cpus=sets[position.local_rank],
        sharing=sets.count(sets[position.local_rank]),
        by_mpi=True,
        gpu=gpu[position.local_rank],
    )
    return JobPlan(
        # Each rank's own, which tells the processes of one rank from those of its neighbors.
        job=f"{options.job}.{position.rank}",
        command=tuple(options.command),
        ranks=(rank,),
        prefix=options.prefix,
        output_folder=options.output_filename,
        notice=_notice(position, gpu),
        kill_grace=options.kill_grace,
    )


def _notice(position: Place, gpu: Sequence[str | None]) -> str:
    """Describe the GPUs of this host's ranks, in the guard of its first rank; "" in the others.

    srun may show other GPUs to each rank (`--gpus-per-task`), so each guard describes its own.
    """
    if position.by_srun:
        text = gpus.describe({position.rank: gpu[position.local_rank]})
    else:
        text = gpus.describe(dict(enumerate(gpu)), "local rank") if position.local_rank == 0 else ""
    return f"on {socket.gethostname()}, {text}" if text else ""


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the options of a guard."""
    parser = argparse.ArgumentParser(prog="ringar.launchers.start.guard", description=description)
    parser.add_argument("--job", required=True, help="the name of the whole job")
    parser.add_argument("--prefix", action="store_true", help='begin lines with "[rank] "')
    parser.add_argument("--output-filename", type=Path, help="as ringarrun's")
    parser.add_argument("--bind-to", help="as ringarrun's")
    parser.add_argument("--grace", type=float, default=3.0, help="seconds after a failure")
    parser.add_argument("--kill-grace", type=float, help="as ringarrun's")
    parser.add_argument("--asked-by", type=int, default=signals.ASK, help="the signal to stop")
    parser.add_argument("--max-failures", type=int, default=0, help="as ringarrun's")
    parser.add_argument("command", nargs="+", help="what to run")
    return parser


def run(make: Callable[[], Runner | None]) -> int:
    """Make a job and run it to its end; print the error if it cannot be made.

    Returns:
        The exit code.
    """
    try:
        job = make()
        return 1 if job is None else job.run()
    except UsageError as error:
        print(f"ringarrun: error: on {socket.gethostname()}: {error}", file=sys.stderr)
        return error.code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank to its end and return its exit code."""
    options = parser(__doc__).parse_args(arguments)

    def make() -> Runner:
        position = place(os.environ)
        check_executable(options.command[0], os.environ.get("PATH"))
        policy = GuardFailurePolicy(options.grace, options.asked_by)
        # mpirun and srun give the terminal to rank 0, and nothing to the others. The ranks of a
        # host find each other by MPI, and make a segment.
        start = Fork(stdin=lambda rank: 0, has_segment=False)
        return Runner(make_plan(options, position), start, policy, asked_by=options.asked_by)

    return run(make)


if __name__ == "__main__":
    sys.exit(main())
