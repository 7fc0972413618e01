"""The process of one rank: its start, its exit status, and the order in which ranks end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ringar.job.inherited import LAUNCHER_VARIABLE
from ringar.launchers.plan.job_plan import JobPlan, RankPlan
from ringar.launchers.supervise import recipients
from ringar.launchers.supervise.output import Stream

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class ExitStatus:
    """How a process ended: with an exit code, or by a signal."""

    code: int = 0
    signal: int = 0

    @property
    def ok(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.code == 0 and self.signal == 0

    @property
    def exit_code(self) -> int:
        """The exit code that a shell would report."""
        return 128 + self.signal if self.signal else self.code

    def __str__(self) -> str:
        if not self.signal:
            return f"exit code {self.code}"
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = "unknown"
        return f"signal {self.signal} ({name})"


@dataclass
class Rank:
    """One rank that was started. `status` is None while it runs; its standard error comes last."""

    plan: RankPlan
    process: subprocess.Popen[bytes]
    streams: tuple[Stream, ...]
    status: ExitStatus | None = None
    is_stopped: bool = False  # the launcher had told it to stop before it ended
    recipient: int = 0  # the process that was told to stop
    helpers_told: bool = False  # its helpers have been told to stop, too

    @property
    def number(self) -> int:
        """Its rank in the job."""
        return self.plan.rank

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its session and process group."""
        return self.process.pid

    def handles(self, number: int, children: Mapping[int, Sequence[int]]) -> bool:
        """Return whether the rank has a handler for signal `number`."""
        return recipients.catches(recipients.recipient(self.pid, children), number)

    def tell(self, number: int, children: Mapping[int, Sequence[int]]) -> None:
        """Send the rank, and none of its helpers, a signal.

        Args:
            number: the signal.
            children: those of each process of the job.
        """
        self.recipient = recipients.recipient(self.pid, children)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.recipient, number)

    def is_at_work(self) -> bool:
        """Return whether its program runs; a wrapper of it may live longer."""
        return self.status is None and recipients.is_alive(self.recipient or self.pid)

    @property
    def stdout(self) -> Stream:
        """Its standard output."""
        return self.streams[0]

    @property
    def stderr(self) -> Stream:
        """Its standard error."""
        return self.streams[-1]

    def has_ended(self) -> bool:
        """Set `status` if it has ended; return whether it has.

        The process is not reaped: while it is a zombie, no other process can get its number, and
        its process group can be signalled safely until the end of the job.
        """
        if self.status is None:
            result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if result is not None:
                by_exit = result.si_code == os.CLD_EXITED
                self.status = (
                    ExitStatus(code=result.si_status)
                    if by_exit
                    else ExitStatus(signal=result.si_status)
                )
        return self.status is not None


class ExitWatch:
    """Lists ranks in the order in which they ended.

    When one rank dies the others follow within milliseconds, and a busy launcher sees them all dead
    at once. The order tells the cause: an epoll set lists its members in the order in which they
    became ready. On a kernel before 5.3, which has no pidfd, ranks killed by a signal come first,
    and then the lower ones.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._by_pidfd: dict[int, Rank] = {}
        self._without: list[Rank] = []

    def add(self, rank: Rank) -> None:
        """Watch `rank`."""
        try:
            pidfd = os.pidfd_open(rank.pid)
        except (AttributeError, OSError):
            self._without.append(rank)
            return
        self._by_pidfd[pidfd] = rank
        self._epoll.register(pidfd, select.EPOLLIN)

    def fileno(self) -> int:
        """Return a file descriptor that is readable when a rank has ended."""
        return self._epoll.fileno()

    @property
    def poll_interval(self) -> float | None:
        """Seconds after which to call `ended_ranks` without an event; None: never."""
        return 0.02 if self._without else None

    def ended_ranks(self) -> list[Rank]:
        """Return the ranks that have ended since the last call, in the order of their end."""
        ranks = []
        for pidfd, _ in self._epoll.poll(0):
            rank = self._by_pidfd.pop(pidfd)
            self._epoll.unregister(pidfd)
            os.close(pidfd)
            rank.has_ended()
            ranks.append(rank)
        polled = [rank for rank in self._without if rank.has_ended()]
        self._without = [rank for rank in self._without if rank.status is None]
        polled.sort(key=lambda rank: (rank.status is None or not rank.status.signal, rank.number))
        return ranks + polled

    def close(self) -> None:
        """Close all file descriptors."""
        for pidfd in self._by_pidfd:
            os.close(pidfd)
        self._by_pidfd.clear()
        self._epoll.close()


def spawn(
    job: JobPlan,
    rank: RankPlan,
    *,
    inherited: Mapping[str, int] | None,
    janitor: int,
    stdin: int,
    outputs: tuple[int, int],
) -> subprocess.Popen[bytes]:
    """Start the process of `rank`.

    Args:
        job: the job that it belongs to.
        rank: its place and its CPUs.
        inherited: file descriptors that the process inherits, by the variables that name them.
            None (ranks that MPI has started): it inherits all files of MPI instead.
        janitor: the pipe of the janitor, which gets the process id before the program begins.
        stdin: its standard input.
        outputs: its standard output and standard error.

    Raises:
        OSError: the program cannot be executed.
    """
    environment = job.rank_environment(rank, os.environ)
    if inherited is not None:
        environment[LAUNCHER_VARIABLE] = str(os.getpid())
    for name, descriptor in (inherited or {}).items():
        environment[name] = str(descriptor)
    return subprocess.Popen(
        job.command,
        stdin=stdin,
        stdout=outputs[0],
        stderr=outputs[1],
        env=environment,
        close_fds=inherited is not None,
        pass_fds=tuple((inherited or {}).values()),
        start_new_session=True,
        preexec_fn=_before_program(rank.cpus, janitor),
    )


def bound_to_launcher(number: int, launcher: int | None = None) -> Callable[[], None]:
    """Return a `preexec_fn` by which a process gets signal `number` when its parent dies.

    Python is safe there: the launcher has only one thread.

    Args:
        number: the signal.
        launcher: the parent's process id; None: this process.
    """
    launcher = launcher or os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number))
        if os.getppid() != launcher:  # it died before the line above
            os._exit(1)

    return prepare


def _before_program(cpus: tuple[int, ...] | None, janitor: int) -> Callable[[], None]:
    """Return the `preexec_fn` of a rank."""
    bind_to_launcher = bound_to_launcher(signal.SIGKILL)

    def prepare() -> None:
        bind_to_launcher()
        with contextlib.suppress(OSError):  # someone has killed the janitor
            os.write(janitor, b"%d\n" % os.getpid())
        if cpus is not None:
            # CPUs may have been taken away meanwhile; a rank runs unbound, too.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, cpus)

    return prepare
