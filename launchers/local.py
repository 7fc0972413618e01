"""Run a planned job on this host: start its ranks, pass their output on, end them together.

One thread runs one loop. The loop never blocks on the reader of the output: a stopped terminal must
not keep the launcher from noticing that a rank has died.

Four events end a job, all in the same way: the launcher sends SIGTERM to the processes that still
run, and SIGKILL `graces.KILL` seconds later, until no process of the job is left. After a signal
`--kill-grace` may leave the ranks another time, in which they save what they have. SIGTERM goes to
the ranks first (`recipients.py`), and to their helpers when their rank has gone.

- All ranks have exited. Their background processes get `graces.LEFTOVER` seconds to follow.
- More ranks have failed than may (`--max-failures`). `failures.py` chooses the rank to name.
- The launcher got a signal. A second signal means SIGKILL at once. SIGUSR1 and SIGUSR2 are passed
  on to ranks that have a handler, and end the job when a rank exits as with SIGTERM: with 128 + the
  signal's number.
- The reader of the output has closed it.

Ctrl-Z stops the ranks with the launcher (`job_control.py`).

If the launcher itself is killed, the kernel kills the ranks (PR_SET_PDEATHSIG) and the janitor
kills the rest. The ranks' shared segment has no name; it goes with the last process that holds it.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import BinaryIO, Literal

from ringar.launchers import clock, failures, graces, janitor, job_control, recipients, signals
from ringar.launchers.output import BACKLOG, Screen, Stream, screens
from ringar.launchers.plan import JobPlan, RankPlan
from ringar.launchers.ranks import ExitWatch, Rank, spawn
from ringar.launchers.signals import Signals

_GIVE_UP = 5.0  # seconds after SIGKILL: the kernel cannot end a process on a hung network disk
_TICK = 0.02  # seconds between two looks, once the end has begun


def run(job: JobPlan) -> int:
    """Run `job` to its end and return the exit code for the launcher.

    Raises:
        UsageError: the program cannot be executed, or a file for its output cannot be written.
    """
    return LocalJob(job).run()


class LocalJob:
    """A job whose ranks all run on this host."""

    #: A signal that stops the job as SIGTERM does.
    also_stops: tuple[int, ...] = ()
    #: Whether this process stops with the ranks on Ctrl-Z: nothing then passes SIGCONT on to it.
    stops_itself = True

    def __init__(self, job: JobPlan) -> None:
        self.job = job
        self.ranks: list[Rank] = []
        #: The ranks that failed before they were told to stop, in the order of their death.
        self.failures: list[Rank] = []
        self.signal = 0  # the first signal that told the launcher to stop
        self._signal_count = 0
        self._passed_on: set[int] = set()
        self._out, self._err = screens()
        self._term_at: float | None = None
        self._kill_at: float | None = None
        self._received: Signals
        self._exits = ExitWatch()
        self._poll = selectors.PollSelector()
        self._interests: dict[int, int] = {}
        self._segment = self._make_segment()
        self._janitor: subprocess.Popen[bytes] | None = None
        self._janitor_pipe = -1

    def run(self) -> int:
        """Run the job to its end and return the exit code."""
        self._received = Signals(self._on_signal, self.also_stops)
        with self._received as received:
            self._watch_fd(received.fileno(), selectors.EVENT_READ, received.clear)
            self._watch_fd(self._exits.fileno(), selectors.EVENT_READ, lambda: None)
            try:
                self._start()
                self._loop()
            finally:
                self._end()
            self._report()
            code = self._exit_code()
            self._flush()
        return code

    # Starting

    def _start(self) -> None:
        self._start_janitor()
        self._say(
            f"job {self.job.job}: {len(self.job.ranks)} ranks of: {' '.join(self.job.command)}"
        )
        for name, value in self.job.environment.items():
            self._say(f"environment: {name}={value}")
        if self.job.notice:
            self._err.message(self.job.notice)
        for plan in self._planned():
            self._start_rank(plan)

    def _planned(self) -> Sequence[RankPlan]:
        return self.job.ranks

    def _make_segment(self) -> int:
        """Make the shared segment of the ranks and return its file descriptor; -1 for none."""
        return os.memfd_create("ringar-shared-segment")

    def _start_janitor(self) -> None:
        reader, self._janitor_pipe = os.pipe()
        # Without RINGAR_JOB, so that the janitor of a job inside a job outlives the outer one by
        # the moment it needs.
        environment = {name: value for name, value in os.environ.items() if name != "RINGAR_JOB"}
        self._janitor = subprocess.Popen(
            [sys.executable, "-I", "-S", janitor.__file__, str(reader), self.job.job],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            pass_fds=(reader,),
            start_new_session=True,
        )
        os.close(reader)

    def _start_rank(self, plan: RankPlan) -> None:
        pipes = os.pipe(), os.pipe()
        streams = (
            self._stream(plan, "stdout", pipes[0][0]),
            self._stream(plan, "stderr", pipes[1][0]),
        )
        process = None
        try:
            process = self._spawn(plan, (pipes[0][1], pipes[1][1]))
        except OSError as error:
            raise failures.cannot_execute(self.job.command[0], error) from error
        finally:
            for _, writer in pipes:
                os.close(writer)
            if process is None:
                for stream in streams:
                    stream.close()
        rank = Rank(plan, process, *streams)
        self.ranks.append(rank)
        self._exits.add(rank)
        where = "any CPU" if plan.cpus is None else "CPUs " + ",".join(map(str, plan.cpus))
        self._say(f"rank {rank.number}: process {rank.pid} on {where}")

    def _spawn(self, plan: RankPlan, outputs: tuple[int, int]) -> subprocess.Popen[bytes]:
        return spawn(
            self.job,
            plan,
            inherited=self._inherited(plan),
            janitor=self._janitor_pipe,
            stdin=self._stdin(plan),
            outputs=outputs,
        )

    def _has_run(self, plan: RankPlan) -> bool:
        return any(rank.number == plan.rank for rank in self.ranks)

    def _stream(self, plan: RankPlan, name: str, fd: int) -> Stream:
        path = self.job.output_path(plan.rank, name)
        copy: BinaryIO | None = None
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                mode: Literal["ab", "wb"] = "ab" if self._has_run(plan) else "wb"
                copy = open(path, mode, buffering=0)  # noqa: SIM115 (the stream closes it)
            except OSError as error:
                raise failures.cannot_write(path, error) from error
        return Stream(
            fd,
            self._out if name == "stdout" else self._err,
            prefix=b"[%d] " % plan.rank if self.job.prefix else b"",
            live=plan.rank == 0 and not plan.by_mpi,
            raw=not self.job.prefix and plan.size == 1,
            copy=copy,
        )

    def _inherited(self, plan: RankPlan) -> Mapping[str, int] | None:
        """Return the files of a rank, by variable; None for all that this process has inherited."""
        return None if self._segment < 0 else {**plan.files, "RINGAR_SEGMENT_FD": self._segment}

    def _stdin(self, plan: RankPlan) -> int:
        return rank_stdin(plan.rank)

    # Running

    def _loop(self) -> None:
        while not self._step(clock.now()):
            self._update_interests()
            for key, _ in clock.select(self._poll, self._timeout(clock.now())):
                key.data()

    def _step(self, now: float) -> bool:
        """Take the actions that are due; return whether the job has ended."""
        for rank in self._exits.ended():
            self._on_exit(rank, now)
        for stream in self._streams():
            due = stream.prompt_due()
            if due is not None and due <= now:
                stream.show_prompt()
        if self._term_at is None and (self._out.broken or self._err.broken):
            self.signal = signal.SIGPIPE
            self._term_at = now
        if self._term_at is not None:
            self._out.limit = self._err.limit = 2 * BACKLOG
        self._warn_of_lost_output()
        running = self._is_running()
        if not running and not janitor.members(self.job.job):
            return True
        if not running and self._term_at is None:
            self._term_at = now + graces.LEFTOVER
        if not running and self._kill_at is not None:  # the grace of the ranks is over
            self._kill_at = min(self._kill_at, now + graces.KILL)
        return self._stop_if_due(now)

    def _is_running(self) -> bool:
        return any(rank.status is None for rank in self.ranks)

    def _stop_if_due(self, now: float) -> bool:
        """Send the signals that are due; return whether processes outlive SIGKILL."""
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_all()
            if now >= self._kill_at + _GIVE_UP:
                left = ", ".join(map(str, sorted(janitor.members(self.job.job)))) or "unknown"
                self._err.message(f"processes that could not be killed: {left}")
                return True
        elif self._kill_at is None and self._term_at is not None and now >= self._term_at:
            self._kill_at = now + self._kill_grace()
            for rank in self.ranks:
                rank.stopped = rank.status is None
            self._stop_ranks()
        elif self._kill_at is not None:
            self._stop_helpers()
        return False

    def _kill_grace(self) -> float:
        """Return the seconds from SIGTERM to SIGKILL: other than usual only after a signal."""
        asked = self.job.kill_grace if self.signal else None
        return graces.KILL if asked is None else asked

    def _children(self) -> dict[int, list[int]]:
        return recipients.children(janitor.members(self.job.job))

    def _stop_ranks(self) -> None:
        """Send SIGTERM to each rank that runs."""
        running = [rank for rank in self.ranks if rank.status is None]
        children = self._children()
        for rank in running:
            rank.tell(signal.SIGTERM, children)
        # A stopped process (SIGSTOP) sees SIGTERM only then.
        janitor.signal_groups([rank.pid for rank in running], signal.SIGCONT)
        self._stop_helpers()

    def _stop_helpers(self) -> None:
        """Send SIGTERM to the helpers of ranks that have gone since the last call."""
        gone = [rank for rank in self.ranks if not (rank.helpers_told or rank.is_at_work())]
        for rank in gone:
            rank.helpers_told = True
        groups = [rank.pid for rank in gone]
        janitor.signal_groups(groups, signal.SIGTERM, signal.SIGCONT)
        if gone and all(rank.helpers_told for rank in self.ranks):
            found = janitor.members(self.job.job)
            strays = janitor.strays(found, [rank.pid for rank in self.ranks])
            janitor.signal_processes(strays, signal.SIGTERM, signal.SIGCONT)

    def _stop_slot(self, rank: Rank, number: int) -> None:
        """Send a rank of an elastic job a signal, before the job ends."""
        if number == signal.SIGKILL:
            janitor.signal_groups([rank.pid], number)
        else:
            rank.tell(number, self._children())

    def _stop_helpers_of(self, rank: Rank) -> None:
        """Send SIGTERM to the helpers of a rank of an elastic job that has gone."""
        janitor.signal_groups([rank.pid], signal.SIGTERM, signal.SIGCONT)

    def _kill_all(self) -> None:
        janitor.signal_job(self.job.job, [rank.pid for rank in self.ranks], signal.SIGKILL)

    def _on_exit(self, rank: Rank, now: float) -> None:
        rank.stderr.drain()  # its last lines tell the kind of failure
        self._say(f"rank {rank.number}: ended with {rank.status}")
        if rank.status is not None:
            self._note_obedience(rank.status.exit_code, now)
        if rank.status is None or rank.status.ok or rank.stopped or self.signal:
            return
        self.failures.append(rank)
        if self._goes_on():
            self._on_allowed_failure(rank)
            return
        grace = self._grace_after(rank)
        self._term_at = min(now + grace, self._term_at or now + grace)

    def _on_allowed_failure(self, rank: Rank) -> None:
        text = f"rank {rank.number} of {len(self.ranks)} {failures.ending(rank)}"
        self._err.message(f"{text}; {failures.OTHERS_GO_ON}")

    def _goes_on(self) -> bool:
        """Return whether the ranks that have failed may fail while others go on."""
        return len(self.failures) <= min(self.job.max_failures, len(self.ranks) - 1)

    def _grace_after(self, failed: Rank) -> float:
        """Return the seconds that the other ranks may go on."""
        # A rank that only reports a lost peer may overtake that peer on the way out.
        return graces.CAUSE if failures.is_consequence(failed) else 0.0

    def _note_obedience(self, code: int, now: float) -> None:
        """End the job if a rank's exit code says that it ends on a signal that was passed on.

        The other ranks are about to end, too.
        """
        if not self.signal and code - 128 in self._passed_on:
            self.signal = code - 128
            self._term_at = min(now + self._kill_grace(), self._term_at or math.inf)

    def _pass_on(self, number: int) -> None:
        """Send a signal to the ranks that have a handler for it."""
        children = self._children()
        running = [rank for rank in self.ranks if rank.status is None]
        takers = [rank for rank in running if rank.handles(number, children)]
        for rank in takers:
            rank.tell(number, children)
        self._passed_on.add(number)
        if not takers:
            self._err.message(signals.ignored(number, [rank.number for rank in running]))

    def _on_signal(self, number: int) -> None:
        if number in signals.JOB_CONTROL:
            self._on_job_control(number)
            return
        if number in signals.USER and number not in self.also_stops:
            self._pass_on(number)
            return
        clock.go_on()
        now = clock.now()
        self._signal_count += 1
        if self._signal_count > 1:
            self._kill_at = now
        if self.signal in (0, signal.SIGPIPE):  # Ctrl-C ends the `tee` of a pipeline, too
            self.signal = number
        self._term_at = min(now, self._term_at or now)

    def _on_job_control(self, number: int) -> None:
        """Stop all processes on Ctrl-Z, or let them go on."""
        if number == signal.SIGTSTP and self.stops_itself:
            if job_control.nobody_continues():
                return
            self._stop_or_go_on(number)
            if not self._received.have_come():  # such as a SIGCONT, which would be missed
                job_control.stop_this_process()
            number = signal.SIGCONT
        self._stop_or_go_on(number)

    def _stop_or_go_on(self, number: int) -> None:
        stops = number == signal.SIGTSTP
        (clock.stop if stops else clock.go_on)()
        change = job_control.stop if stops else job_control.go_on
        change(self.job.job, [rank.pid for rank in self.ranks if rank.status is None])

    def _timeout(self, now: float) -> float | None:
        if self._term_at is not None or not self._is_running():
            return _TICK
        dues = [due - now for stream in self._streams() if (due := stream.prompt_due()) is not None]
        if self._exits.poll_interval is not None:
            dues.append(self._exits.poll_interval)
        return max(0.0, min(dues)) if dues else None

    # Files

    def _streams(self) -> list[Stream]:
        return [stream for rank in self.ranks for stream in rank.streams]

    def _update_interests(self) -> None:
        """Poll the pipes of ranks whose screen keeps up, and the screens that are behind."""
        for stream in self._streams():
            if stream.closed:
                continue
            # Once the job ends, no rank waits for the reader: it would not come to save.
            full = stream.screen.waiting > BACKLOG and self._term_at is None
            self._watch_fd(
                stream.fd, 0 if full else selectors.EVENT_READ, partial(self._read, stream)
            )
        for screen in {self._out, self._err}:
            self._watch_fd(
                screen.fd, selectors.EVENT_WRITE if screen.waiting else 0, screen.write_some
            )

    def _watch_fd(self, fd: int, events: int, action: Callable[[], object]) -> None:
        if self._interests.get(fd, 0) == events:
            return
        if self._interests.get(fd, 0):
            self._poll.unregister(fd)
        if events:
            self._poll.register(fd, events, action)
        self._interests[fd] = events

    def _read(self, stream: Stream) -> None:
        fd = stream.fd
        stream.read_some()
        if stream.closed:
            self._watch_fd(fd, 0, lambda: None)
        self._warn_of_copy(stream)

    def _warn_of_copy(self, stream: Stream) -> None:
        if stream.copy_error is not None:
            self._err.message(
                f"--output-filename: writing has failed, {stream.copy_error}; the job goes on"
            )
            stream.copy_error = None

    def _screens(self) -> list[tuple[str, Screen, Screen]]:
        """Return the names of the screens, the screens, and for each the other one."""
        return [("output", self._out, self._err), ("error", self._err, self._out)]

    def _warn_of_lost_output(self) -> None:
        for name, screen, other in self._screens():
            if screen.error is not None and not screen.broken and not screen.has_warned:
                screen.has_warned = True
                other.message(
                    f"writing the standard {name} has failed, {screen.error}; the job goes on"
                )

    def _flush(self) -> None:
        """Write the rest of the output: after a signal only to a reader that reads."""
        for screen in (self._out, self._err):
            screen.release()
        self._write_rest()
        for screen in (self._out, self._err):
            screen.drop()
        for name, screen, other in self._screens():
            if screen.lost and other is not screen:
                other.message(f"{screen.lost} bytes of the standard {name} are lost")
        self._write_rest()

    def _write_rest(self) -> None:
        count, until = self._signal_count, clock.now() + graces.KILL
        while (self._out.waiting or self._err.waiting) and self._signal_count == count:
            if self.signal and clock.now() >= until:
                return
            self._update_interests()
            for key, _ in self._poll.select(_TICK if self.signal else None):
                key.data()

    # The end

    def _end(self) -> None:
        """Kill every process of the job, and close all files."""
        clock.go_on()
        give_up = clock.now() + _GIVE_UP
        self._kill_all()
        while not all(rank.has_ended() for rank in self.ranks) and clock.now() < give_up:
            time.sleep(_TICK)
        for stream in self._streams():
            stream.drain()
            self._watch_fd(stream.fd, 0, stream.close)
            stream.close()
        self._watch_fd(self._exits.fileno(), 0, self._exits.close)
        self._exits.close()
        for rank in self.ranks:
            if rank.status is not None:
                rank.process.wait()
        if self._janitor is not None:
            os.close(self._janitor_pipe)
            self._janitor.kill()
            self._janitor.wait()
        if self._segment >= 0:
            os.close(self._segment)

    def _report(self) -> None:
        for stream in self._streams():  # what was read last
            self._warn_of_copy(stream)
        if self.failures and not self._goes_on():
            text, tail = failures.report(self._last_ranks(), self.failures)
            for line in tail:
                self._err.line(line)
            self._err.message(text)
        elif self.signal == signal.SIGPIPE:
            for name, screen, other in self._screens():
                if screen.broken:
                    other.message(f"stopped all ranks: the reader of the standard {name} has gone")
        elif self.signal:
            self._err.message(f"stopped all ranks on {signals.name_of(self.signal)}")

    def _last_ranks(self) -> Sequence[Rank]:
        """Return the processes that were ranks in the end."""
        return self.ranks

    def _exit_code(self) -> int:
        if self.failures and not self._goes_on():
            status = failures.cause(self.failures).status
            return status.exit_code if status else 1
        return 128 + self.signal if self.signal else 0

    def _say(self, text: str) -> None:
        if self.job.verbose:
            self._err.message(text)


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
