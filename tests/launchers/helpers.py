"""Starts real launchers for the tests, and sees to it that nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.plugin.jobs import left_in_shared_memory

LAUNCHER = (sys.executable, "-m", "ringar.launchers")
MARK = "RINGAR_TEST_MARK"

#: The environment of a launcher whose graces are waited for: a fifth of what users have.
QUICK = {"RINGAR_GRACE_SCALE": "0.2"}

#: Seconds within which everything in these tests must have happened.
TIMEOUT = 60.0


def clean_environment() -> dict[str, str]:
    """The environment of the tests without what a launcher may have set for them, and no GPUs."""
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("RINGAR_")
    }
    return {**variables, "CUDA_VISIBLE_DEVICES": ""}


def python(code: str) -> tuple[str, ...]:
    """The command that runs `code`, quickly: without site-packages."""
    return (sys.executable, "-S", "-c", code)


def shell(code: str) -> tuple[str, ...]:
    """The command that runs `code` in a shell."""
    return ("sh", "-c", code)


def wait_until(condition: Callable[[], object], event: str, timeout: float = TIMEOUT) -> None:
    """Wait until `condition()` is true, and fail with `event` if it does not come true."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"waited {timeout} s for: {event}"
        time.sleep(0.02)


def processes(mark: str) -> set[int]:
    """The living processes that were started with `mark` in their environment."""
    pids = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            if f"{MARK}={mark}".encode() in environment.split(b"\0"):
                pids.add(int(folder.name))
    return pids


class Launcher:
    """A running `ringarrun`. Everything that it starts can be found by its mark."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
        command: Sequence[str] = LAUNCHER,
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [*command, *arguments],
            env={**clean_environment(), **(env or {}), MARK: self.mark},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="replace",
        )

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in processes(self.mark) - {self.process.pid}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self.process.poll() is None:
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self.process.wait(TIMEOUT)

    def finish(
        self, timeout: float = TIMEOUT, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Wait for the launcher's end; nothing may be left of the job then."""
        out, err = self.process.communicate(text, timeout=timeout)
        left = processes(self.mark)
        assert not left, f"the job has left processes behind: {left}"
        assert not left_in_shared_memory()
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err)

    def signal(self, number: int) -> None:
        """Send a signal to the launcher alone."""
        self.process.send_signal(number)

    def is_over(self) -> bool:
        """Whether no process of the job is left."""
        return not processes(self.mark)


def launch(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    text: str | None = None,
    timeout: float = TIMEOUT,
) -> subprocess.CompletedProcess[str]:
    """Run `ringarrun` with `arguments` to its end."""
    stdin = subprocess.DEVNULL if text is None else subprocess.PIPE
    with Launcher(*arguments, env=env, stdin=stdin) as launcher:
        return launcher.finish(timeout, text)
