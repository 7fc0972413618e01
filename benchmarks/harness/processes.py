"""Runs a job of many processes with a deadline and leaves none of them behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
import time
import uuid

from benchmarks.harness.machine import ROOT

try:
    from ringar.launchers.supervise.janitor import members
except ModuleNotFoundError as error:
    raise SystemExit(
        f"benchmarks: expected an editable installation of ringar, received none ({error}); the "
        "folder ringar/ of the checkout hides any other; run: pip install --editable "
        "'.[tensorflow,bench]'"
    ) from None

_MARK = "RINGAR_BENCHMARK_JOB"
"""Every process of a job inherits this variable, whatever group or session it makes for itself."""
_GRACE = 5.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class JobFailedError(RuntimeError):
    """A job did not end well; the message is the end of its output, `output` all of it."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


def run_command(command: list[str], *, deadline: float, env: dict[str, str] | None = None) -> str:
    """Runs a job in a session of its own and returns its output.

    However this ends, Ctrl-C included, all processes of the job have ended then; if this process
    is killed, the job's first process gets SIGTERM from the kernel.

    Raises:
        JobFailedError: it failed, or outlasted `deadline` seconds and was stopped.
    """
    mark = uuid.uuid4().hex
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    # To a file, not to a pipe: a process that the job leaves behind would keep a pipe open.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment, **(env or {}), _MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        try:
            code = process.wait(deadline)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            try:
                _ask_to_end(process)
            finally:
                _kill(mark)
                process.wait()
        output.seek(0)
        text = output.read()
    if code is None:
        raise JobFailedError(f"no end after {deadline:.3g} s", text)
    if code:
        raise JobFailedError(f"exit code {code}: {_last_words(text)}", text)
    return text


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))


def _last_words(text: str) -> str:
    """Returns the last three lines with words: launchers draw boxes of dashes and equal signs."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip("-=* \t")]
    return " / ".join(lines[-3:])[-300:]


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGTERM, on which a launcher ends its ranks and removes its files."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return


def _kill(mark: str) -> None:
    # Again and again, for a process may fork while we look.
    for _ in range(100):
        left = members(mark, _MARK)
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
