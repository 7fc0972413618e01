"""The guard of one rank of a job that mpirun or srun starts: it runs the user's program.

    mpirun (or srun) -> on each host, for each rank: guard.py -> the program

The guard gives ranks on other hosts what `ringarrun` gives ranks of a local job: CPUs and a GPU of
their own, whole lines of output with the rank in front, files of their output, and an end that
leaves no process behind.

The guard also gives the other ranks time to report a failure. mpirun and srun kill all ranks within
milliseconds after one has ended with an error. So the guard of a failed rank reports the failure,
waits `--grace` seconds, and only then ends with the rank's exit code. Meanwhile the other ranks
raise ringar's own error, which names the lost rank. The guard does the same for a rank that was
killed by a signal, which mpirun might not even notice.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import signal
import socket
import stat
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringar.launchers import clock, cpus, failures, gpus, graces, plan, signals
from ringar.launchers.allocation import counts
from ringar.launchers.errors import UsageError
from ringar.launchers.local import LocalJob
from ringar.launchers.plan import JobPlan, RankPlan
from ringar.launchers.program import check_executable
from ringar.launchers.ranks import Rank

_PARENT_CHECK = 1.0  # seconds between two checks that mpirun's daemon still lives
_TICK = 0.01  # seconds between two checks that it has read all output

CONSEQUENCE = "it had lost a peer"
_REPORT = (
    rb"ringarrun %s\.\d+: (?P<text>rank (?P<rank>\d+) of \d+ on \S+ (?:(?P<well>ended well)|"
    rb"(?:failed|was killed).* (?P<kind>exit code|signal) (?P<number>\d+)(?P<rest>.*)))$"
)


def reports(job: str) -> re.Pattern[bytes]:
    """Return the pattern of the lines in which guards of `job` report the end of their ranks.

    A report may stand behind the unfinished line of another rank, for mpirun passes the output of
    ranks on in pieces. The job's name in it tells it from the output of the ranks.

    Guards report an end without fault, too: after the death of a whole host, Open MPI's mpirun ends
    with exit code 0, and only the missing report tells.
    """
    return re.compile(_REPORT % re.escape(job.encode()))


def report(job: str, rank: int, size: int, host: str, ending: str) -> str:
    """Return the line that reports the end of a rank; `job` is the guard's, with its number."""
    return f"ringarrun {job}: rank {rank} of {size} on {host} {ending}"


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


class GuardedJob(LocalJob):
    """The ranks below a guard: the one of mpirun or srun, or those of a host."""

    stops_itself = False

    def __init__(self, job: JobPlan, grace: float, asked_by: int = signals.ASK) -> None:
        super().__init__(job)
        self._grace = grace
        self._asked_by = asked_by
        self.also_stops = (asked_by,)
        self._parent = os.getppid()
        self._host = socket.gethostname()

    def _make_segment(self) -> int:
        return -1  # the ranks of a host find each other by MPI, and make one

    def _stdin(self, plan: RankPlan) -> int:
        return 0  # mpirun and srun give the terminal to rank 0, and nothing to the others

    def _step(self, now: float) -> bool:
        if os.getppid() != self._parent and not self.signal:
            self._on_signal(signal.SIGTERM)  # the daemon that started the guard is gone
        return super()._step(now)

    def _timeout(self, now: float) -> float | None:
        timeout = super()._timeout(now)
        return _PARENT_CHECK if timeout is None else min(timeout, _PARENT_CHECK)

    def _on_allowed_failure(self, rank: Rank) -> None:
        self._report_failure(rank)  # the supervisor counts those of all hosts

    def _report(self) -> None:
        if self._goes_on():
            if self.signal in (0, self._asked_by):
                failed = {rank.number for rank in self.failures}
                for plan in self.job.ranks:
                    if plan.rank not in failed:
                        self._say_to_supervisor(plan, "ended well")
            if self.signal == self._asked_by:
                self._linger(self._kill_grace())  # mpirun kills all ranks when one guard ends
            return
        rank = failures.cause(self.failures[self.job.max_failures :])  # the others are reported
        if rank.status is not None and rank.status.signal == signal.SIGTERM:
            # srun stops rank and guard at once, and the guard may see the rank's end first.
            self._linger(_PARENT_CHECK)
            if self.signal:
                return
        self._report_failure(rank)
        self._flush()
        self._linger(self._grace_for_others(rank))

    def _grace_for_others(self, rank: Rank) -> float:
        """Return the seconds that the others have after the failure of a rank, or its save."""
        has_saved = rank.status is not None and rank.status.exit_code - 128 in self._passed_on
        return max(self._grace, self.job.kill_grace or 0.0) if has_saved else self._grace

    def _report_failure(self, rank: Rank) -> None:
        text = failures.ending(rank)
        if failures.is_consequence(rank):
            text += f"; {CONSEQUENCE}"
        self._say_to_supervisor(rank.plan, text)

    def _kill_grace(self) -> float:
        return super()._kill_grace() if self.signal == self._asked_by else graces.KILL

    def _note_obedience(self, code: int, now: float) -> None:
        pass  # the supervisor does

    def _say_to_supervisor(self, rank: RankPlan, ending: str) -> None:
        """Report an end in the form of `reports`, in one piece.

        mpirun reads some kilobytes at a time, and what it reads next may be of another rank. So the
        report waits until all that comes before it has been read, if that does not take long.
        """
        self._flush()
        end = clock.now() + _PARENT_CHECK
        while _unread(self._err.fd) and not self.signal and clock.now() < end:
            time.sleep(_TICK)
        text = report(self.job.job, rank.rank, rank.size, self._host, ending)
        self._err.line(text.encode(errors="replace"))

    def _linger(self, seconds: float) -> None:
        """Leave the other ranks time to end by themselves, up to a signal."""
        self._update_interests()  # the screens, which would always be ready
        end = clock.now() + seconds
        asked = int(self.signal == self._asked_by)
        while self._signal_count == asked and (left := end - clock.now()) > 0:
            for key, _ in self._poll.select(min(left, _PARENT_CHECK)):
                key.data()
            if os.getppid() != self._parent:
                return


def _unread(fd: int) -> bool:
    """Return whether the pipe `fd` holds bytes that its reader has not read yet."""
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return False
    return any(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))


def make_plan(options: argparse.Namespace, here: Place) -> JobPlan:
    """Plan the job of the one rank."""
    usable = cpus.available()
    sets = plan.cpu_sets(options.bind_to, here.local_size, usable)
    own = sets[here.local_rank]
    gpu = gpus.of_ranks(os.environ, here.local_size)
    rank = RankPlan(
        rank=here.rank,
        size=here.size,
        local_rank=here.local_rank,
        local_size=here.local_size,
        cpus=own,
        sharing=sets.count(own),
        by_mpi=True,
        gpu=gpu[here.local_rank],
    )
    return JobPlan(
        # Each rank's own, which tells the processes of one rank from those of its neighbors.
        job=f"{options.job}.{here.rank}",
        command=tuple(options.command),
        ranks=(rank,),
        prefix=options.prefix,
        output_folder=options.output_filename,
        notice=_notice(here, gpu),
        kill_grace=options.kill_grace,
    )


def _notice(here: Place, gpu: Sequence[str | None]) -> str:
    """Describe the GPUs of this host's ranks, in the guard of its first rank; "" in the others.

    srun may show other GPUs to each rank (`--gpus-per-task`), so each guard describes its own.
    """
    if here.by_srun:
        text = gpus.describe({here.rank: gpu[here.local_rank]})
    else:
        text = gpus.describe(dict(enumerate(gpu)), "local rank") if here.local_rank == 0 else ""
    return f"on {socket.gethostname()}, {text}" if text else ""


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the options of a guard."""
    parser = argparse.ArgumentParser(prog="ringar.launchers.guard", description=description)
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


def run(make: Callable[[], LocalJob | None]) -> int:
    """Make a job and run it to its end; say what is wrong where it cannot be made.

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

    def make() -> GuardedJob:
        here = place(os.environ)
        check_executable(options.command[0], os.environ.get("PATH"))
        return GuardedJob(make_plan(options, here), options.grace, options.asked_by)

    return run(make)


if __name__ == "__main__":
    sys.exit(main())
