"""Run a planned job of mpirun or srun: start the one command, pass its output on, end it.

mpirun and srun watch the ranks. The supervisor adds:

- Signals. The first one becomes SIGTERM (for srun, too), which mpirun and srun pass on to the
  guards. The second one becomes SIGKILL, and so do `graces.COMMAND_KILL` seconds.
- Time to save. With `--kill-grace`, the first signal becomes one (`signals.ASK`) after which mpirun
  and srun leave the job alone: each guard sends SIGTERM to its rank. SIGTERM follows when all ranks
  have ended, or their time is over.
- SIGUSR1 and SIGUSR2. Guards pass them on to ranks that have a handler. The job ends when a rank
  exits with 128 + the signal's number.
- Timeouts. mpirun and srun end the job when the guard of a failed rank ends, `--failure-grace`
  seconds after its report. `graces.SETTLE` seconds later the command is ended: hydra leaves ranks
  on other hosts alone, and any of them may wait for a host that is gone.
- The cause. mpirun's exit code may be that of a rank that was killed for another's fault, or 0
  although a host has died. The guards' reports (`reports.py`) on the standard error tell the rank
  that failed first, and whether all ranks have ended.

The command runs in a session of its own, so that Ctrl-C reaches it once, by way of this process.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

from ringar.launchers.plan.job_plan import JobPlan, RankPlan
from ringar.launchers.start.fork import rank_stdin
from ringar.launchers.start.hosts_plan import HostsPlan
from ringar.launchers.supervise import clock, failures, graces, signals
from ringar.launchers.supervise.failure_policy import FailurePolicy
from ringar.launchers.supervise.output import Stream
from ringar.launchers.supervise.parts import Starter
from ringar.launchers.supervise.ranks import ExitStatus, Rank, bound_to_launcher
from ringar.launchers.supervise.reports import CONSEQUENCE, reports
from ringar.launchers.supervise.runner import Runner

_TICK = 0.1
_LONGEST_LINE = 1 << 16
_LONGEST_REPORT = 1 << 10


def run(job: HostsPlan) -> int:
    """Run `job` to its end and return the exit code for the launcher."""
    policy = ReportFailurePolicy(job)
    command = JobPlan(job.job, job.command.words, (RankPlan(0, 1, 0, 1),))
    return Runner(command, Command(job, policy), policy).run()


@dataclass(frozen=True)
class Failure:
    """The report of a guard: the whole line, the rank, and how it ended."""

    line: bytes
    rank: int
    status: ExitStatus
    is_consequence: bool


class ReportFailurePolicy(FailurePolicy):
    """Decide on failures of a job of mpirun or srun, by the reports of its guards."""

    def __init__(self, job: HostsPlan) -> None:
        super().__init__()
        self.pattern = reports(job.job)
        self._job = job
        self._failures: list[Failure] = []
        self._good_ends: set[int] = set()  # the ranks that came to their end without fault
        self._last = b""  # the last line on the screen

    def show(self, data: bytes) -> None:
        """Show output of the command."""
        self.runner.err.put(data)
        self._last = data.rstrip(b"\n") or self._last

    def on_report(self, match: re.Match[bytes]) -> None:
        """Take the report of a guard."""
        rank = int(match["rank"])
        if match["well"]:
            self._on_good_end(rank)
        elif rank not in self._over():  # its guard and the way to it may report
            self._on_failure(rank, match)

    def _on_good_end(self, rank: int) -> None:
        self._good_ends.add(rank)
        if self.stop.signal and len(self._over()) == self._job.size:
            self.stop.at(clock.now())

    def _on_failure(self, rank: int, match: re.Match[bytes]) -> None:
        number = int(match["number"])
        by_signal = match["kind"] == b"signal"
        status = ExitStatus(signal=number) if by_signal else ExitStatus(code=number)
        grace = self._job.failure_grace
        if self.stop.has_obeyed(status.exit_code):  # the others are about to end, too
            self.stop.signal = self.stop.signal or status.exit_code - 128
            grace = max(grace, self._job.kill_grace or 0.0)
            self.stop.at(clock.now() + grace + graces.SETTLE)
            self._on_good_end(rank)
            return
        line = b"ringarrun: " + match["text"]
        self._failures.append(Failure(line, rank, status, CONSEQUENCE.encode() in match["rest"]))
        if self.goes_on():
            line += f"; {failures.OTHERS_GO_ON}".encode()
        self._last = line
        self.runner.err.line(line)
        if self.stop.term_at is None and not self.goes_on():
            self.stop.term_at = clock.now() + grace + graces.SETTLE

    def on_exit(self, rank: Rank, now: float) -> None:
        """Do nothing: the job ends with its command."""

    def goes_on(self) -> bool:
        """Return whether the ranks that have failed may fail while others go on."""
        return len(self._failures) <= min(self._job.max_failures, self._job.size - 1)

    def kill_grace(self) -> float:
        """Return the seconds from SIGTERM to SIGKILL of the command."""
        return graces.COMMAND_KILL

    def _cause(self) -> Failure | None:
        """Return the failure that has ended the job."""
        if self.goes_on():
            return None
        return failures.first_cause(self._failures, lambda failure: failure.is_consequence)

    def _missing_ranks(self) -> list[int]:
        """Return the ranks without a report of their end, though the command ended with 0."""
        if self._status().exit_code or not self.goes_on() or self.stop.signal:
            return []
        return sorted(set(range(self._job.size)) - self._over())

    def _over(self) -> set[int]:
        """Return the ranks that have ended, well or not."""
        return self._good_ends | {failure.rank for failure in self._failures}

    def _status(self) -> ExitStatus:
        return self.runner.ranks[0].status or ExitStatus(code=1)

    def report(self) -> None:
        """Name the cause again if it is no longer in the last line, or the ranks that are lost."""
        cause = self._cause()
        if self.stop.signal:
            self.note_signal()
        elif cause is not None:
            if cause.line != self._last:  # mpirun, or other ranks, have said something since
                self.runner.err.line(cause.line)
        elif ranks := self._missing_ranks():
            numbers = ", ".join(map(str, ranks))
            self.runner.note(
                f"expected the end of {self._job.size} ranks, but {self._job.launcher} has ended "
                f"without rank{'' if len(ranks) == 1 else 's'} {numbers}; a host may have died"
            )

    def exit_code(self) -> int:
        """Return the exit code: of the signal, of the cause, or of the command."""
        if self.stop.signal:
            return 128 + self.stop.signal
        cause = self._cause()
        if cause is not None:
            return cause.status.exit_code
        return 1 if self._missing_ranks() else self._status().exit_code


class ReportStream(Stream):
    """The standard error of the command, which is shown as it is, but for the reports."""

    def __init__(self, fd: int, policy: ReportFailurePolicy) -> None:
        super().__init__(fd, policy.runner.err)
        self._policy = policy

    def _feed(self, data: bytes) -> None:
        *lines, rest = (bytes(self._line) + data).split(b"\n")
        for line in lines:
            match = self._policy.pattern.search(line)
            if match is None:
                self._policy.show(line + b"\n")
            else:  # which may stand behind the unfinished line of another rank
                self._policy.show(line[: match.start()])
                self._policy.on_report(match)
        if len(rest) > _LONGEST_LINE:  # its end may be the beginning of a report
            self._policy.show(rest[:-_LONGEST_REPORT])
            rest = rest[-_LONGEST_REPORT:]
        self._line[:] = rest

    def _finish_line(self) -> None:
        self._policy.show(bytes(self._line))


class Command(Starter):
    """The start of a job by one command, whose standard output is that of this process."""

    outputs = ("stderr",)
    carries_output = False

    def __init__(self, job: HostsPlan, policy: ReportFailurePolicy) -> None:
        self._job, self._policy = job, policy
        self._is_paused = False

    def begin(self) -> None:
        """Show the command if the user has asked for details."""
        if self._job.verbose:
            self.runner.note(self._job.shell())

    def spawn(self, plan: RankPlan, outputs: Mapping[str, int]) -> subprocess.Popen[bytes]:
        """Start the command."""
        return subprocess.Popen(
            self._job.command.words,
            env=dict(self._job.environment),
            stdin=rank_stdin(0),
            stderr=outputs["stderr"],
            start_new_session=True,
            # If this process is killed, mpirun ends the job as if it had been asked to.
            preexec_fn=bound_to_launcher(signal.SIGTERM),
        )

    def stream(self, plan: RankPlan, name: str, fd: int) -> Stream:
        """Return the stream that reads the reports."""
        return ReportStream(fd, self._policy)

    def remains(self) -> set[int]:
        """Return the command's process, if it lives."""
        return {rank.pid for rank in self.runner.running}

    def ask(self) -> float:
        """Ask the guards to stop their ranks, which then have the time of `--kill-grace`."""
        if self._job.kill_grace is None:
            return 0.0
        self._send(self._job.asked_by)
        return self._job.kill_grace + graces.SETTLE if self._job.kill_grace else 0.0

    def stop(self) -> None:
        """Send the command SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End the command at once; daemons and guards notice that it is gone, and end, too."""
        if self._job.launcher == "srun" and self.runner.running:
            # Twice within a second: srun then kills the step everywhere, and ends.
            for _ in range(2):
                self._send(signal.SIGINT)
                time.sleep(_TICK)
            end = time.monotonic() + graces.COMMAND_KILL
            while not all(rank.has_ended() for rank in self.runner.ranks):
                if time.monotonic() >= end:
                    self._send(signal.SIGKILL)
                    return
                time.sleep(_TICK)
        for rank in self.runner.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)

    def pass_on(self, number: int) -> None:
        """Pass a signal on to the guards, if the command does so."""
        if number in self._job.passes_on:
            self.runner.stop.passed_on.add(number)
            self._send(number)
            return
        with_option = "" if self._job.kill_grace is None else " with --kill-grace"
        self.runner.note(
            f"ignored {signals.name_of(number)}: this mpirun{with_option} does not pass it on "
            "to the ranks; SIGTERM saves and ends the job"
        )

    def can_pause(self) -> bool:
        """Return whether the command stops its ranks on Ctrl-Z; tell the user if not."""
        self._is_paused = signal.SIGTSTP in self._job.passes_on
        if not self._is_paused:
            self.runner.note(f"ignored SIGTSTP: this {self._job.launcher} does not stop ranks")
        return self._is_paused

    def pause(self, number: int) -> None:
        """Pass SIGTSTP on, and SIGCONT after it."""
        if self._is_paused:
            self._send(number)
            self._is_paused = number == signal.SIGTSTP

    def _send(self, number: int) -> None:
        for rank in self.runner.running:
            os.kill(rank.pid, number)
