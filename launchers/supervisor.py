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
  seconds after its report. `graces.SETTLE` seconds later the supervisor ends them: hydra leaves
  ranks on other hosts alone, and any of them may wait for a host that is gone.
- The cause. mpirun's exit code may be that of a rank that was killed for another's fault, or 0
  although a host has died. The supervisor reads the guards' reports from the standard error, which
  tell the rank that failed first, and whether all ranks have ended.

The command runs in a session of its own, so that Ctrl-C reaches it once, by way of this process.
"""

from __future__ import annotations

import math
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from ringar.launchers import clock, graces, job_control, signals
from ringar.launchers.failures import OTHERS_GO_ON
from ringar.launchers.guard import CONSEQUENCE, reports
from ringar.launchers.local import rank_stdin
from ringar.launchers.mpi_plan import MpiJob
from ringar.launchers.output import BACKLOG, Screen
from ringar.launchers.ranks import ExitStatus, bound_to_launcher
from ringar.launchers.signals import Signals

_TICK = 0.1
_LONGEST_LINE = 1 << 16
_LONGEST_REPORT = 1 << 10


@dataclass(frozen=True)
class Failure:
    """The report of a guard: the whole line, the rank, and how it ended."""

    line: bytes
    rank: int
    status: ExitStatus
    consequence: bool


def run(job: MpiJob) -> int:
    """Run `job` to its end and return the exit code for the launcher."""
    return Supervisor(job).run()


class Supervisor:
    """A job that mpirun or srun carries out."""

    def __init__(self, job: MpiJob) -> None:
        self.job = job
        self.failures: list[Failure] = []
        self.ended: set[int] = set()  # the ranks that came to their end without fault
        self.signal = 0
        self._signal_count = 0
        self._passed_on: set[int] = set()
        self._to_pass_on: list[int] = []
        self._stops = False  # with all ranks, as soon as the command can be told
        self._ask = False  # pass on a first signal that leaves time to save
        self._term_at: float | None = None
        self._kill_at: float | None = None
        self._reports = reports(job.job)
        self._screen = Screen(2)
        self._line = b""
        self._last = b""
        self._open = True  # the command's standard error

    def run(self) -> int:
        """Run the job to its end and return the exit code."""
        with Signals(self._on_signal) as received, selectors.PollSelector() as poll:
            poll.register(received.fileno(), selectors.EVENT_READ, received.clear)
            process = self._start()
            assert process.stderr is not None
            try:
                self._loop(process, process.stderr.fileno(), poll)
            finally:
                if process.poll() is None:
                    self._kill(process)
                process.stderr.close()
            status = process.wait()
            self._pass_on(self._line)
            self._report(status)
            self._flush(poll)
        return self._exit_code(status)

    def _start(self) -> subprocess.Popen[bytes]:
        if self.job.verbose:
            self._screen.message(self.job.shell())
        return subprocess.Popen(
            self.job.command.words,
            env=dict(self.job.environment),
            stdin=rank_stdin(0),
            stderr=subprocess.PIPE,
            start_new_session=True,
            # If this process is killed, mpirun ends the job as if it had been asked to.
            preexec_fn=bound_to_launcher(signal.SIGTERM),
        )

    def _loop(
        self, process: subprocess.Popen[bytes], stderr: int, poll: selectors.BaseSelector
    ) -> None:
        """Pass the standard error on until the command has ended."""
        os.set_blocking(stderr, False)
        readers: dict[int, Callable[[], object]] = {}
        while process.poll() is None:
            wanted: dict[int, Callable[[], object]] = {}
            if self._open and self._screen.waiting <= BACKLOG:
                wanted[stderr] = lambda: self._read(stderr)
            if self._screen.waiting:
                wanted[self._screen.fd] = self._screen.write_some
            for fd in readers.keys() - wanted.keys():
                poll.unregister(fd)
            for fd in wanted.keys() - readers.keys():
                event = selectors.EVENT_READ if fd == stderr else selectors.EVENT_WRITE
                poll.register(fd, event, wanted[fd])
            readers = wanted
            for key, _ in clock.select(poll, _TICK):
                key.data()
            self._end_if_due(process, clock.now())
        for fd in readers:
            poll.unregister(fd)
        while self._open and self._read(stderr):
            pass

    def _flush(self, poll: selectors.BaseSelector) -> None:
        """Write the rest of the standard error: after a signal only to a reader that reads."""
        count, until = self._signal_count, clock.now() + graces.KILL
        poll.register(self._screen.fd, selectors.EVENT_WRITE, self._screen.write_some)
        while self._screen.waiting and self._signal_count == count:
            if self.signal and clock.now() >= until:
                return
            for key, _ in poll.select(_TICK):
                key.data()

    def _read(self, fd: int) -> bool:
        """Read the output of the command; return whether there may be more."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._open = False
            return False
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._on_line(line)
        if len(self._line) > _LONGEST_LINE:  # its end may be the beginning of a report
            self._pass_on(self._line[:-_LONGEST_REPORT])
            self._line = self._line[-_LONGEST_REPORT:]
        return True

    def _pass_on(self, data: bytes) -> None:
        self._screen.put(data)
        self._last = data.rstrip(b"\n") or self._last

    def _on_line(self, line: bytes) -> None:
        match = self._reports.search(line)
        if match is None:
            self._pass_on(line + b"\n")
            return
        self._pass_on(line[: match.start()])  # the unfinished line of another rank
        if match["well"]:
            self._on_good_end(int(match["rank"]))
        elif int(match["rank"]) not in self._over():  # its guard and the way to it may report
            self._on_failure(match)

    def _on_good_end(self, rank: int) -> None:
        self.ended.add(rank)
        if self.signal and len(self._over()) == self.job.size:
            self._term_at = clock.now()

    def _on_obedience(self, rank: int, number: int) -> None:
        """Note that a rank ends on a signal that was passed on; the others are about to end."""
        self.signal = self.signal or number
        wait = max(self.job.failure_grace, self.job.kill_grace or 0.0) + graces.SETTLE
        self._term_at = min(clock.now() + wait, self._term_at or math.inf)
        self._on_good_end(rank)

    def _on_failure(self, match: re.Match[bytes]) -> None:
        line = b"ringarrun: " + match["text"]
        number = int(match["number"])
        by_signal = match["kind"] == b"signal"
        status = ExitStatus(signal=number) if by_signal else ExitStatus(code=number)
        consequence = CONSEQUENCE.encode() in match["rest"]
        if status.exit_code - 128 in self._passed_on:
            self._on_obedience(int(match["rank"]), status.exit_code - 128)
            return
        self.failures.append(Failure(line, int(match["rank"]), status, consequence))
        if self._goes_on():
            line += f"; {OTHERS_GO_ON}".encode()
        self._last = line
        self._screen.line(line)
        if self._term_at is None and not self._goes_on():
            self._term_at = clock.now() + self.job.failure_grace + graces.SETTLE

    def _on_signal(self, number: int) -> None:
        if number in signals.JOB_CONTROL:
            self._on_job_control(number)
            return
        if number in signals.USER:
            self._on_user_signal(number)
            return
        now = clock.now()
        self._signal_count += 1
        self.signal = self.signal or number
        self._ask = self.job.kill_grace is not None and self._signal_count == 1
        wait = self.job.kill_grace + graces.SETTLE if self._ask and self.job.kill_grace else 0
        self._term_at = min(now + wait, self._term_at or now + wait)
        if self._signal_count > 1:
            self._kill_at = now

    def _on_user_signal(self, number: int) -> None:
        if number in self.job.passes_on:
            self._passed_on.add(number)
            self._to_pass_on.append(number)
        else:
            with_option = "" if self.job.kill_grace is None else " with --kill-grace"
            self._screen.message(
                f"ignored {signals.name_of(number)}: this mpirun{with_option} does not pass it on "
                "to the ranks; SIGTERM saves and ends the job"
            )

    def _on_job_control(self, number: int) -> None:
        """Note that Ctrl-Z is to stop all ranks, and this process."""
        if number == signal.SIGCONT or job_control.nobody_continues():
            return
        if number not in self.job.passes_on:
            self._screen.message(
                f"ignored {signals.name_of(number)}: this {self.job.launcher} does not stop ranks"
            )
            return
        self._stops = True

    def _stop_together(self, process: subprocess.Popen[bytes]) -> None:
        self._stops = False
        clock.stop()
        process.send_signal(signal.SIGTSTP)
        job_control.stop_this_process()
        process.send_signal(signal.SIGCONT)
        clock.go_on()

    def _end_if_due(self, process: subprocess.Popen[bytes], now: float) -> None:
        if self._stops:
            self._stop_together(process)
        for number in self._to_pass_on:
            process.send_signal(number)
        self._to_pass_on.clear()
        if self._ask:
            process.send_signal(self.job.asked_by)
            self._ask = False
        if self._kill_at is not None:
            if now >= self._kill_at:
                self._kill(process)
        elif self._term_at is not None and now >= self._term_at:
            self._kill_at = now + graces.COMMAND_KILL
            process.terminate()

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """End the command at once; daemons and guards notice that it is gone, and end, too."""
        if self.job.launcher == "srun":
            # Twice within a second: srun then kills the step everywhere, and ends.
            for _ in range(2):
                process.send_signal(signal.SIGINT)
                time.sleep(_TICK)
            try:
                process.wait(graces.COMMAND_KILL)
            except subprocess.TimeoutExpired:
                process.kill()
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _goes_on(self) -> bool:
        return len(self.failures) <= min(self.job.max_failures, self.job.size - 1)

    def _cause(self) -> Failure | None:
        """Return the failure that has ended the job."""
        if self._goes_on():
            return None
        own = [failure for failure in self.failures if not failure.consequence]
        return next(iter(own or self.failures), None)

    def _lost(self, status: int) -> list[int]:
        """Return the ranks without a report of their end, though the command ended with 0."""
        if status != 0 or not self._goes_on() or self.signal:
            return []
        return sorted(set(range(self.job.size)) - self._over())

    def _over(self) -> set[int]:
        """Return the ranks that have ended, well or not."""
        return self.ended | {failure.rank for failure in self.failures}

    def _report(self, status: int) -> None:
        cause = self._cause()
        if cause is not None and not self.signal:
            if cause.line != self._last:  # mpirun, or other ranks, have said something since
                self._screen.line(cause.line)
        elif self.signal:
            self._screen.message(f"stopped all ranks on {signals.name_of(self.signal)}")
        elif lost := self._lost(status):
            numbers = ", ".join(map(str, lost))
            self._screen.message(
                f"expected the end of {self.job.size} ranks, but {self.job.launcher} has ended "
                f"without rank{'' if len(lost) == 1 else 's'} {numbers}; a host may have died"
            )

    def _exit_code(self, status: int) -> int:
        if self.signal:
            return 128 + self.signal
        cause = self._cause()
        if cause is not None:
            return cause.status.exit_code
        if self._lost(status):
            return 1
        return 128 - status if status < 0 else status
