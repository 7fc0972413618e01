"""The hosts that an elastic job may use now: of a script, or of a host file that changes.

The script prints a host per line, `host:slots` or `host`; a host file has the form of `--hostfile`.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from ringar.launchers import hosts
from ringar.launchers.errors import UsageError

_EVERY = 1.0  # seconds
_TIMEOUT = 30.0  # of the script


class Discovery:
    """Watch the hosts without waiting for them.

    Args:
        script: a program that prints the hosts; None to read `hostfile`.
        hostfile: the host file, if there is no script.

    Attributes:
        hosts: those that were found last; None before.
        trouble: what keeps them from being known; "" for nothing.
    """

    def __init__(self, script: str | None, hostfile: Path | None) -> None:
        self._script, self._hostfile = script, hostfile
        self._process: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        self._due = self._begun = 0.0
        self.hosts: tuple[hosts.Host, ...] | None = None
        self.trouble = ""

    def look(self, now: float) -> None:
        """Update `hosts` and `trouble` if it is time."""
        if self._process is not None:
            self._look_at_script(now)
        elif now >= self._due:
            self._due = now + _EVERY
            if self._script is None:
                self._read_file()
            else:
                self._start_script(now)

    def wait(self) -> tuple[hosts.Host, ...]:
        """Return the hosts that are found first.

        Raises:
            UsageError: they cannot be found.
        """
        while self.hosts is None and not self.trouble:
            self.look(time.monotonic())
            time.sleep(0.02)
        if self.hosts is None:
            self.close()
            raise UsageError(self.trouble)
        return self.hosts

    def close(self) -> None:
        """End the script, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._output.close()

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
            )
            self._begun = now
        except OSError as error:
            self.trouble = f"--host-discovery-script: cannot run {self._script!r}: {error.strerror}"

    def _look_at_script(self, now: float) -> None:
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            if now - self._begun > _TIMEOUT:
                self._process.kill()
            return
        self._process = None
        if code != 0:
            self.trouble = (
                f"--host-discovery-script: expected exit code 0 of {self._script!r} within "
                f"{_TIMEOUT:g} s, received {code}"
            )
            return
        self._output.seek(0)
        lines = [line.strip() for line in self._output.read().decode(errors="replace").splitlines()]
        try:
            self._take(hosts.parse(",".join(filter(None, lines))) if any(lines) else ())
        except UsageError as error:
            self.trouble = f"--host-discovery-script: {error}"

    def _take(self, found: tuple[hosts.Host, ...]) -> None:
        self.trouble, self.hosts = "", found
