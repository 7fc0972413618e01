"""The failure policy of ranks below a guard, which reports to the launcher how they end.

mpirun and srun kill all ranks within milliseconds after one has ended with an error. So the guard
of a failed rank reports the failure, waits `--grace` seconds, and only then ends with the rank's
exit code. Meanwhile the other ranks raise ringar's own error, which names the lost rank. The guard
does the same for a rank that was killed by a signal, which mpirun might not even notice.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import time

from ringar.launchers.plan.job_plan import RankPlan
from ringar.launchers.supervise import clock, failures, graces, signals
from ringar.launchers.supervise.failure_policy import FailurePolicy
from ringar.launchers.supervise.ranks import Rank
from ringar.launchers.supervise.reports import CONSEQUENCE, report

_PARENT_CHECK = 1.0  # seconds between two checks that mpirun's daemon still lives
_TICK = 0.01  # seconds between two checks that it has read all output


class GuardFailurePolicy(FailurePolicy):
    """Decide on failures of the ranks of a guard.

    Args:
        grace: seconds for the other ranks of the job after a failure.
        asked_by: the signal by which the launcher leaves the ranks time to save.
        of_host: whether the guard has all ranks of a host, and not the one of mpirun or srun.
    """

    def __init__(self, grace: float, asked_by: int = signals.ASK, *, of_host: bool = False) -> None:
        super().__init__()
        self._grace, self._asked_by, self._of_host = grace, asked_by, of_host
        self._parent = os.getppid()
        self._host = socket.gethostname()

    def step(self, now: float) -> None:
        """End the job when the daemon that started the guard is gone."""
        if os.getppid() != self._parent and not self.stop.signal:
            self.runner.on_signal(signal.SIGTERM)

    def timeout(self, timeout: float | None) -> float | None:
        """Return how long to wait for the next look at that daemon."""
        return _PARENT_CHECK if timeout is None else min(timeout, _PARENT_CHECK)

    def goes_on(self) -> bool:
        """Return whether so many ranks may fail; those of other hosts may go on."""
        return len(self.failures) <= self.runner.job.max_failures

    def on_allowed_failure(self, rank: Rank) -> None:
        """Report a failure to the launcher, which counts those of all hosts."""
        self._report_failure(rank)

    def grace_after(self, rank: Rank) -> float:
        """Return the seconds in which ranks report their own errors, as on other hosts."""
        return self._grace_for_others(rank) if self._of_host else super().grace_after(rank)

    def note_obedience(self, code: int, now: float) -> None:
        """Do nothing: the launcher does."""

    def kill_grace(self) -> float:
        """Return the seconds from SIGTERM to SIGKILL: other than usual only if asked to stop."""
        return super().kill_grace() if self.stop.signal == self._asked_by else graces.KILL

    def report(self) -> None:
        """Report all ends to the launcher, and leave the other ranks their time."""
        stop = self.stop
        if self.goes_on():
            if stop.signal in (0, self._asked_by):
                failed = {rank.number for rank in self.failures}
                for plan in self.runner.job.ranks:
                    if plan.rank not in failed:
                        self._say_to_launcher(plan, "ended well")
            if stop.signal == self._asked_by:
                self._linger(self.kill_grace())  # mpirun kills all ranks when one guard ends
            return
        # The earlier failures, which were allowed, have been reported.
        rank = failures.cause(self.failures[self.runner.job.max_failures :])
        if rank.status is not None and rank.status.signal == signal.SIGTERM:
            # srun stops rank and guard at once, and the guard may see the rank's end first.
            self._linger(_PARENT_CHECK)
            if stop.signal:
                return
        self._report_failure(rank)
        self.runner.flush()
        self._linger(self._grace_for_others(rank))

    def _grace_for_others(self, rank: Rank) -> float:
        """Return the seconds that the others have after the failure of a rank, or its save."""
        status, kill_grace = rank.status, self.runner.job.kill_grace
        has_saved = status is not None and self.stop.has_obeyed(status.exit_code)
        return max(self._grace, kill_grace or 0.0) if has_saved else self._grace

    def _report_failure(self, rank: Rank) -> None:
        text = failures.ending(rank)
        if failures.is_consequence(rank):
            text += f"; {CONSEQUENCE}"
        self._say_to_launcher(rank.plan, text)

    def _say_to_launcher(self, rank: RankPlan, ending: str) -> None:
        """Report an end in the form of `reports`, in one piece.

        mpirun reads some kilobytes at a time, and may read from another rank next. So the
        report waits until all that comes before it has been read, if that does not take long.
        """
        self.runner.flush()
        end = clock.now() + _PARENT_CHECK
        screen = self.runner.err
        while _unread(screen.fd) and not self.stop.signal and clock.now() < end:
            time.sleep(_TICK)
        text = report(self.runner.job.job, rank.rank, rank.size, self._host, ending)
        screen.line(text.encode(errors="replace"))

    def _linger(self, seconds: float) -> None:
        """Leave the other ranks time to end by themselves, up to a signal."""
        if self._of_host and not self.stop.signal:
            return  # after a failure the other ranks of this host have had their time
        end = clock.now() + seconds
        count = int(self.stop.signal == self._asked_by)
        while self.stop.count == count and (rest := end - clock.now()) > 0:
            self.runner.turn(min(rest, _PARENT_CHECK))
            if os.getppid() != self._parent:
                return


def _unread(fd: int) -> bool:
    """Return whether the pipe `fd` holds bytes that its reader has not read yet."""
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return False
    import fcntl  # which Windows lacks, as the next
    import termios

    return any(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
