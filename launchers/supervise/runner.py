"""Run the processes of a job to their end: one loop, their output, the kill.

One thread runs one loop. The loop never blocks on the reader of the output: a stopped terminal must
not keep the launcher from noticing that a rank has died.

A runner is made of parts. A *starter* (`fork.py`, `spread.py`, `supervisor.py`) begins processes
and takes signals to them; a *failure policy* (`failure_policy.py`) decides on failures;
*joins* (`members.py`) let ranks change.

Four events end a job, all in the same way: the launcher sends SIGTERM to the processes that still
run, and SIGKILL `graces.KILL` seconds later, until no process of the job is left. After a signal
`--kill-grace` may leave the ranks another time, in which they save their state.

- All ranks have exited. Their background processes get `graces.LEFTOVER` seconds to follow.
- More ranks have failed than may (`--max-failures`).
- The launcher got a signal. A second signal means SIGKILL at once. SIGUSR1 and SIGUSR2 are passed
  on to ranks that have a handler, and end the job when a rank exits as with SIGTERM: with 128 + the
  signal's number.
- The reader of the output has closed it.

Ctrl-Z stops the ranks with the launcher (`job_control.py`).
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from functools import partial

from ringar.launchers.plan.job_plan import JobPlan, RankPlan
from ringar.launchers.supervise import clock, failures, graces, job_control, signals
from ringar.launchers.supervise.failure_policy import FailurePolicy, Stop
from ringar.launchers.supervise.output import BACKLOG, Screen, Stream, screens
from ringar.launchers.supervise.parts import Joins, Starter
from ringar.launchers.supervise.ranks import ExitWatch, Rank
from ringar.launchers.supervise.signals import Signals

_GIVE_UP = 5.0  # seconds after SIGKILL: the kernel cannot end a process on a hung network disk
_TICK = 0.02  # seconds between two looks, once the end has begun


class Runner:
    """The processes of one job, and how they come to their end.

    Args:
        job: the job.
        start: how its processes begin.
        failure_policy: decides on failures.
        joins: lets ranks change; None: they stay.
        asked_by: the signal by which the launcher above asks to stop. None: this is the launcher,
            and stops with the ranks on Ctrl-Z.
    """

    def __init__(
        self,
        job: JobPlan,
        start: Starter,
        failure_policy: FailurePolicy,
        joins: Joins | None = None,
        asked_by: int | None = None,
    ) -> None:
        self.job, self.start = job, start
        self.failure_policy, self.joins = failure_policy, joins or Joins()
        self.asked_by = asked_by
        self.ranks: list[Rank] = []
        self.stop = Stop()
        self.out, self.err = screens() if start.carries_output else (Screen(2),) * 2
        self._received: Signals
        self._exits = ExitWatch()
        self._poll = selectors.PollSelector()
        self._interests: dict[int, int] = {}
        start.runner = failure_policy.runner = self.joins.runner = self

    def run(self) -> int:
        """Run the job to its end and return the exit code.

        Raises:
            UsageError: the program cannot be executed, or a file for its output cannot be written.
        """
        self._received = Signals(self.on_signal, () if self.asked_by is None else (self.asked_by,))
        with self._received as received:
            self.watch(received.fileno(), selectors.EVENT_READ, received.clear)
            self.watch(self._exits.fileno(), selectors.EVENT_READ, lambda: None)
            try:
                self._begin()
                while not self._step(clock.now()):
                    self.turn(self._timeout(clock.now()))
            finally:
                self._end()
            self.failure_policy.report()
            code = self.failure_policy.exit_code()
            self.flush()
        return code

    # Starting

    def _begin(self) -> None:
        self.start.begin()
        self.say(
            f"job {self.job.job}: {len(self.job.ranks)} ranks of: {' '.join(self.job.command)}"
        )
        for name, value in self.job.environment.items():
            self.say(f"environment: {name}={value}")
        if self.job.notice:
            self.note(self.job.notice)
        self.joins.begin(clock.now())

    def start_rank(self, plan: RankPlan) -> Rank:
        """Start a process."""
        pipes = {name: os.pipe() for name in self.start.outputs}
        streams = tuple(self.start.stream(plan, name, pipes[name][0]) for name in pipes)
        process = None
        try:
            process = self.start.spawn(plan, {name: pipes[name][1] for name in pipes})
        except OSError as error:
            raise failures.cannot_execute(self.job.command[0], error) from error
        finally:
            for _, writer in pipes.values():
                os.close(writer)
            if process is None:
                for stream in streams:
                    stream.close()
        rank = Rank(plan, process, streams)
        self.ranks.append(rank)
        self._exits.add(rank)
        where = "any CPU" if plan.cpus is None else "CPUs " + ",".join(map(str, plan.cpus))
        self.say(f"rank {rank.number}: process {rank.pid} on {where}")
        self.start.has_started(rank)
        return rank

    # Running

    @property
    def running(self) -> list[Rank]:
        """The processes that have not ended."""
        return [rank for rank in self.ranks if rank.status is None]

    def turn(self, timeout: float | None) -> None:
        """Wait for events, and act on them."""
        self._update_interests()
        for key, _ in clock.select(self._poll, timeout):
            key.data()

    def _step(self, now: float) -> bool:
        """Take the actions that are due; return whether the job has ended."""
        self.failure_policy.step(now)
        for rank in self._exits.ended_ranks():
            rank.stderr.drain()  # its last lines tell the kind of failure
            self.joins.on_exit(rank, now)
        for stream in self.streams():
            prompt_at = stream.prompt_due()
            if prompt_at is not None and prompt_at <= now:
                stream.show_prompt()
        stop = self.stop
        if self.start.carries_output:
            if stop.term_at is None and (self.out.broken or self.err.broken):
                stop.signal, stop.term_at = signal.SIGPIPE, now
            if stop.term_at is not None:
                self.out.limit = self.err.limit = 2 * BACKLOG
        self._warn_of_lost_output()
        is_running = self._is_running()
        if not is_running and not self.start.remains():
            return True
        if not is_running and stop.term_at is None:
            stop.term_at = now + graces.LEFTOVER
        if not is_running and stop.kill_at is not None:  # the grace of the ranks is over
            stop.kill_at = min(stop.kill_at, now + graces.KILL)
        has_ended = self._stop_if_due(now)
        if not has_ended:
            self.joins.step(now)
        return has_ended

    def _is_running(self) -> bool:
        return bool(self.running) or self.joins.is_running()

    def _stop_if_due(self, now: float) -> bool:
        """Send the signals that are due; return whether processes outlive SIGKILL."""
        stop = self.stop
        if stop.kill_at is not None and now >= stop.kill_at:
            self._kill()
            if now >= stop.kill_at + _GIVE_UP:
                alive = ", ".join(map(str, sorted(self.start.remains()))) or "unknown"
                self.note(f"processes that could not be killed: {alive}")
                return True
        elif stop.kill_at is None and stop.term_at is not None and now >= stop.term_at:
            stop.kill_at = now + self.failure_policy.kill_grace()
            for rank in self.ranks:
                rank.is_stopped = rank.status is None
            self.joins.on_stop()
            self.start.stop()
        elif stop.kill_at is not None:
            self.start.stop_helpers()
        return False

    def _kill(self) -> None:
        self.joins.on_stop()
        self.start.kill()

    def on_signal(self, number: int) -> None:
        """Take a signal."""
        if number in signals.JOB_CONTROL:
            self._on_job_control(number)
        elif number in self.start.passes_on:
            self.start.pass_on(number)
        else:
            clock.go_on()
            self.stop.on_signal(number, 0.0 if self.stop.count else self.start.ask())

    def _on_job_control(self, number: int) -> None:
        """Stop all processes on Ctrl-Z, or let them go on."""
        if number == signal.SIGTSTP and self.asked_by is None:
            if job_control.nobody_continues() or not self.start.can_pause():
                return
            self._pause(number)
            if not self._received.have_come():  # such as a SIGCONT, which would be missed
                job_control.stop_this_process()
            number = signal.SIGCONT
        self._pause(number)

    def _pause(self, number: int) -> None:
        (clock.stop if number == signal.SIGTSTP else clock.go_on)()
        self.start.pause(number)

    def _timeout(self, now: float) -> float | None:
        """Return how long to wait for an event."""
        if self.stop.term_at is not None or not self._is_running():
            timeout: float | None = _TICK
        else:
            times = [stream.prompt_due() for stream in self.streams()]
            pauses = [moment - now for moment in times if moment is not None]
            if self._exits.poll_interval is not None:
                pauses.append(self._exits.poll_interval)
            timeout = max(0.0, min(pauses)) if pauses else None
        return self.joins.timeout(self.failure_policy.timeout(timeout))

    # Files

    def streams(self) -> list[Stream]:
        """Return the streams of all processes."""
        return [stream for rank in self.ranks for stream in rank.streams]

    def watch(self, fd: int, events: int, action: Callable[[], object] = lambda: None) -> None:
        """Call `action` when a descriptor is ready for `events`; 0: no more."""
        if self._interests.get(fd, 0) == events:
            return
        if self._interests.get(fd, 0):
            self._poll.unregister(fd)
        if events:
            self._poll.register(fd, events, action)
        self._interests[fd] = events

    def _update_interests(self) -> None:
        """Poll the pipes of ranks whose screen keeps up, and the screens that are behind."""
        # Once the job ends, no rank waits for the reader: it would not come to save.
        may_wait = self.stop.term_at is None or not self.start.carries_output
        for stream in self.streams():
            if not stream.closed:
                full = stream.screen.waiting > BACKLOG and may_wait
                events = 0 if full else selectors.EVENT_READ
                self.watch(stream.fd, events, partial(self._read, stream))
        for screen in {self.out, self.err}:
            events = selectors.EVENT_WRITE if screen.waiting else 0
            self.watch(screen.fd, events, screen.write_some)

    def _read(self, stream: Stream) -> None:
        fd = stream.fd
        stream.read_some()
        if stream.closed:
            self.watch(fd, 0)
        self.warn_of_copy(stream)

    def warn_of_copy(self, stream: Stream) -> None:
        """Tell the user, once, that the file of a stream cannot be written."""
        if stream.copy_error is not None:
            self.note(
                f"--output-filename: writing has failed, {stream.copy_error}; the job goes on"
            )
            stream.copy_error = None

    def screens(self) -> list[tuple[str, Screen, Screen]]:
        """Return the names of the screens, the screens, and for each the other one."""
        return [("output", self.out, self.err), ("error", self.err, self.out)]

    def _warn_of_lost_output(self) -> None:
        for name, screen, other in self.screens():
            if screen.error is not None and not screen.broken and not screen.has_warned:
                screen.has_warned = True
                other.message(
                    f"writing the standard {name} has failed, {screen.error}; the job goes on"
                )

    def flush(self) -> None:
        """Write the rest of the output: after a signal only to a reader that reads."""
        for screen in (self.out, self.err):
            screen.release()
        self._write_rest()
        for screen in (self.out, self.err):
            screen.drop()
        for name, screen, other in self.screens():
            if screen.lost_bytes and other is not screen:
                other.message(f"{screen.lost_bytes} bytes of the standard {name} are lost")
        self._write_rest()

    def _write_rest(self) -> None:
        count, until = self.stop.count, clock.now() + graces.KILL
        while (self.out.waiting or self.err.waiting) and self.stop.count == count:
            if self.stop.signal and clock.now() >= until:
                return
            self.turn(_TICK if self.stop.signal else None)

    # The end

    def _end(self) -> None:
        """Kill every process of the job, and close all files."""
        clock.go_on()
        give_up = clock.now() + _GIVE_UP
        self._kill()
        while not all(rank.has_ended() for rank in self.ranks) and clock.now() < give_up:
            time.sleep(_TICK)
        for stream in self.streams():
            stream.drain()
            self.watch(stream.fd, 0)
            stream.close()
        self.watch(self._exits.fileno(), 0)
        self._exits.close()
        for rank in self.ranks:
            if rank.status is not None:
                rank.process.wait()
        self.start.close()
        self.joins.close()

    def note(self, text: str) -> None:
        """Show a message."""
        self.err.message(text)

    def say(self, text: str) -> None:
        """Show a message if the user has asked for details."""
        if self.job.verbose:
            self.note(text)
