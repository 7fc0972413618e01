"""Start ranks as processes of this host.

SIGTERM goes to the ranks first (`recipients.py`), and to their helpers when their rank has gone. If
the launcher itself is killed, the kernel kills the ranks (PR_SET_PDEATHSIG) and the janitor kills
the rest. The ranks' shared segment has no name; it goes with the last process that holds it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, Literal

from ringar.launchers.plan.job_plan import JobPlan, RankPlan
from ringar.launchers.start import segment
from ringar.launchers.supervise import failures, janitor, job_control, recipients, signals
from ringar.launchers.supervise.failure_policy import FailurePolicy
from ringar.launchers.supervise.output import Stream
from ringar.launchers.supervise.parts import Starter
from ringar.launchers.supervise.ranks import Rank, spawn
from ringar.launchers.supervise.runner import Runner


def run(job: JobPlan) -> int:
    """Run `job` to its end and return the exit code for the launcher.

    Raises:
        UsageError: the program cannot be executed, or a file for its output cannot be written.
    """
    return Runner(job, Fork(), FailurePolicy()).run()


def rank_stdin(rank: int) -> int:
    """Return the standard input of a rank: that of the launcher for rank 0, nothing for the others.

    A rank is in a session of its own, where the terminal's job control does not hold it. Started in
    the background, it would read the input of the shell; so it gets nothing, either.
    """
    if rank != 0:
        return subprocess.DEVNULL
    try:
        background = os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp()
    except OSError:
        background = True
    return subprocess.DEVNULL if background else 0


class Fork(Starter):
    """The start of ranks on this host.

    Args:
        stdin: returns the standard input of a rank.
        has_segment: whether the ranks get one shared segment from the beginning.
        closes: the variables of files that this process closes when a rank has them.
    """

    def __init__(
        self,
        stdin: Callable[[int], int] = rank_stdin,
        has_segment: bool = True,
        closes: Sequence[str] = (),
    ) -> None:
        self._stdin, self._closes = stdin, closes
        self._segment = segment.make() if has_segment else -1
        self._janitor: subprocess.Popen[bytes] | None = None
        self._janitor_pipe = -1

    @property
    def passes_on(self) -> tuple[int, ...]:
        """The signals for ranks with a handler."""
        return tuple(number for number in signals.USER if number != self.runner.asked_by)

    def begin(self) -> None:
        """Start the janitor."""
        reader, self._janitor_pipe = os.pipe()
        # Without RINGAR_JOB, so that the janitor of a job inside a job outlives the outer one by
        # the moment it needs.
        environment = {name: value for name, value in os.environ.items() if name != "RINGAR_JOB"}
        self._janitor = subprocess.Popen(
            [sys.executable, "-I", "-S", janitor.__file__, str(reader), self.runner.job.job],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            pass_fds=(reader,),
            start_new_session=True,
        )
        os.close(reader)

    def has_started(self, rank: Rank) -> None:
        """Close the files that only the rank needs."""
        for name in self._closes:
            os.close(rank.plan.files[name])

    def spawn(self, plan: RankPlan, outputs: Mapping[str, int]) -> subprocess.Popen[bytes]:
        """Start a rank."""
        segment = {"RINGAR_SEGMENT_FD": self._segment} if self._segment >= 0 else {}
        return spawn(
            self.runner.job,
            plan,
            inherited=None if plan.by_mpi else {**plan.files, **segment},
            janitor=self._janitor_pipe,
            stdin=self._stdin(plan.rank),
            outputs=(outputs["stdout"], outputs["stderr"]),
        )

    def stream(self, plan: RankPlan, name: str, fd: int) -> Stream:
        """Return a stream to the screen, and to the file of `--output-filename`."""
        job = self.runner.job
        path = job.output_path(plan.rank, name)
        copy: BinaryIO | None = None
        if path is not None:
            has_run = any(rank.number == plan.rank for rank in self.runner.ranks)
            mode: Literal["ab", "wb"] = "ab" if has_run else "wb"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                copy = open(path, mode, buffering=0)  # noqa: SIM115 (the stream closes it)
            except OSError as error:
                raise failures.cannot_write(path, error) from error
        return Stream(
            fd,
            self.runner.out if name == "stdout" else self.runner.err,
            prefix=b"[%d] " % plan.rank if job.prefix else b"",
            live=plan.rank == 0 and not plan.by_mpi,
            raw=not job.prefix and plan.size == 1,
            copy=copy,
        )

    def remains(self) -> set[int]:
        """Return the living processes of the job."""
        return janitor.members(self.runner.job.job)

    def stop(self) -> None:
        """Send SIGTERM to each rank that runs."""
        running = self.runner.running
        children = self._children()
        for rank in running:
            rank.tell(signal.SIGTERM, children)
        # A stopped process (SIGSTOP) sees SIGTERM only then.
        janitor.signal_groups([rank.pid for rank in running], signal.SIGCONT)
        self.stop_helpers()

    def stop_helpers(self) -> None:
        """Send SIGTERM to the helpers of ranks that have gone since the last call."""
        ranks = self.runner.ranks
        dead = [rank for rank in ranks if not (rank.helpers_told or rank.is_at_work())]
        for rank in dead:
            rank.helpers_told = True
            self.stop_helpers_of(rank)
        if dead and all(rank.helpers_told for rank in ranks):
            strays = janitor.strays(self.remains(), [rank.pid for rank in ranks])
            janitor.signal_processes(strays, signal.SIGTERM, signal.SIGCONT)

    def stop_helpers_of(self, rank: Rank) -> None:
        """Send SIGTERM to the helpers of a rank that has gone."""
        janitor.signal_groups([rank.pid], signal.SIGTERM, signal.SIGCONT)

    def stop_rank(self, rank: Rank, number: int) -> None:
        """Send a rank of an elastic job a signal; SIGKILL goes to its helpers, too."""
        if number == signal.SIGKILL:
            janitor.signal_groups([rank.pid], number)
        else:
            rank.tell(number, self._children())

    def kill(self) -> None:
        """Send SIGKILL to all processes of the job."""
        pids = [rank.pid for rank in self.runner.ranks]
        janitor.signal_job(self.runner.job.job, pids, signal.SIGKILL)

    def pass_on(self, number: int) -> None:
        """Send a signal to the ranks that have a handler for it."""
        children = self._children()
        running = self.runner.running
        takers = [rank for rank in running if rank.handles(number, children)]
        for rank in takers:
            rank.tell(number, children)
        self.runner.stop.passed_on.add(number)
        if not takers:
            self.runner.note(signals.ignored(number, [rank.number for rank in running]))

    def pause(self, number: int) -> None:
        """Stop all processes of the job, or let them go on."""
        change = job_control.stop if number == signal.SIGTSTP else job_control.go_on
        change(self.runner.job.job, [rank.pid for rank in self.runner.running])

    def close(self) -> None:
        """End the janitor, and close the segment."""
        if self._janitor is not None:
            os.close(self._janitor_pipe)
            self._janitor.kill()
            self._janitor.wait()
        if self._segment >= 0:
            os.close(self._segment)

    def _children(self) -> dict[int, list[int]]:
        return recipients.children(self.remains())
