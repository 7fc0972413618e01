"""The hosts that an elastic job may use now: of a script, or of a host file that changes.

The script prints a host per line, `host:slots`, `host`, or whatever a line of `--hostfile` may be.
An answer counts when it has been given twice. This ignores answers that last for a second, such as
the empty answer of a service that restarts, or half of a file.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from ringar.launchers.errors import UsageError
from ringar.launchers.plan import hosts
from ringar.launchers.supervise import clock, signals
from ringar.launchers.supervise.ranks import bound_to_launcher

_EVERY = 1.0  # seconds
_TIMEOUT = 30.0  # of the script
_LONGEST = 1 << 20  # bytes that the script may print
_TICK = 0.02  # seconds
_SCRIPT = "--host-discovery-script"


class Discovery:
    """Watch the hosts without waiting for them.

    Args:
        script: a program that prints the hosts; None to read `hostfile`.
        hostfile: the host file, if there is no script.

    Attributes:
        hosts: the last answer that was given twice; None before.
        trouble: why the hosts cannot be known; "" if they can.
        can_run: whether there is such a script.
    """

    def __init__(self, script: str | None, hostfile: Path | None) -> None:
        self._script, self._hostfile = script, hostfile
        self._process: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        self._next_at = self._started_at = 0.0
        self._last: frozenset[hosts.Host] | None = None
        self.hosts: tuple[hosts.Host, ...] | None = None
        self.trouble = ""
        self.can_run = True

    def look(self, now: float) -> None:
        """Update `hosts` and `trouble` if it is time."""
        if self._process is not None:
            self._look_at_script(self._process, now)
        elif now >= self._next_at:
            self._next_at = now + _EVERY
            if self._script is None:
                self._read_file()
            else:
                self._start_script(now)

    def wait(self, least: int, seconds: float, pause: float = 0.0) -> tuple[hosts.Host, ...]:
        """Return the first hosts that have slots enough; show the reason for the wait meanwhile.

        Args:
            least: so many slots are enough.
            seconds: how long to wait at most.
            pause: how long to wait at least.

        Raises:
            UsageError: the script cannot be run, the hosts do not come in time, or a signal has
                told the launcher to stop.
        """
        begin, notice = clock.now(), ""
        received: list[int] = []
        with signals.Signals(received.append) as caught:
            while self.can_run and (self._slots() < least or clock.now() < begin + pause):
                if received:
                    name = signals.name_of(received[0])
                    raise UsageError(f"stopped on {name}; nothing was started", 128 + received[0])
                if clock.now() >= begin + seconds:
                    raise self._are_too_few(least, seconds)
                self.look(clock.now())
                if (why := self._obstacle(least)) not in ("", notice):
                    again = f"asking again for up to {seconds:g} s (--elastic-timeout)"
                    print(f"ringarrun: {why}; {again}", file=sys.stderr, flush=True)
                    notice = why
                if select.select([caught], [], [], _TICK)[0]:
                    caught.clear()
        if not self.can_run:
            raise UsageError(self.trouble)
        assert self.hosts is not None
        return self.hosts

    def _slots(self) -> int:
        return sum(host.slots for host in self.hosts or ())

    def _obstacle(self, least: int) -> str:
        """Return the reason why a job cannot start; "" for none, or if it is not known yet."""
        if not self.can_run or self.trouble or self.hosts is None:
            return self.trouble if self.can_run else ""
        if self._slots() >= least:
            return ""
        return f"{self._name}: expected {least} slots (--min-np) or more, received {self._slots()}"

    def _are_too_few(self, least: int, seconds: float) -> UsageError:
        why = self._obstacle(least) or f"{self._name}: expected the same answer twice"
        return UsageError(
            f"{why}, for {seconds:g} s (--elastic-timeout); nothing was started. See that there "
            "are hosts, or allow more time",
            1,
        )

    @property
    def _name(self) -> str:
        return f"--hostfile {self._hostfile}" if self._script is None else _SCRIPT

    def close(self) -> None:
        """End the script, if it runs, with all that it has started."""
        if self._process is not None:
            self._kill(self._process)
            self._process.wait()
            self._process = None
        self._output.close()

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def _read_file(self) -> None:
        assert self._hostfile is not None
        try:
            self._take(hosts.read(self._hostfile))
        except UsageError as error:
            self.trouble = str(error)

    def _start_script(self, now: float) -> None:
        assert self._script is not None
        self._output.seek(0)
        self._output.truncate()
        try:
            self._process = subprocess.Popen(
                [os.path.abspath(self._script)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                start_new_session=True,
                preexec_fn=bound_to_launcher(signal.SIGKILL),
            )
            self._started_at, self.can_run = now, True
        except OSError as error:
            self.trouble = f"{_SCRIPT}: cannot run {self._script!r}: {error.strerror}"
            self.can_run = False

    def _look_at_script(self, process: subprocess.Popen[bytes], now: float) -> None:
        size = os.fstat(self._output.fileno()).st_size
        is_over = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if is_over is None and now - self._started_at <= _TIMEOUT and size <= _LONGEST:
            return
        self._kill(process)  # before it is reaped, when its number may be that of another group
        self._process, code = None, process.wait()
        if code != 0 or size > _LONGEST:
            received = f"{code}" if size <= _LONGEST else f"more than {_LONGEST} bytes of output"
            self.trouble = (
                f"{_SCRIPT}: expected exit code 0 of {self._script!r} within {_TIMEOUT:g} s, "
                f"received {received}"
            )
            return
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        try:
            self._take(hosts.of_lines(lines, _SCRIPT))
        except UsageError as error:
            self.trouble = str(error)

    def _take(self, answer: tuple[hosts.Host, ...]) -> None:
        self.trouble = ""
        before, self._last = self._last, frozenset(answer)  # in any order
        is_news = self.hosts is None or frozenset(self.hosts) != self._last
        if before == self._last and is_news:
            self.hosts = answer
