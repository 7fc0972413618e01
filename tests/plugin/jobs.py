"""Jobs that a test starts: with a deadline, and without processes left behind."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.plugin import warm
from tests.plugin.warm_python import NAME_LENGTH, read_once

ROOT = Path(__file__).resolve().parents[2]

#: Where the Pythons of a job find modules: `site` makes TensorFlow's import shorter.
PYTHONPATH = os.pathsep.join([str(ROOT / "tests" / "plugin" / "site"), str(ROOT)])

# Every process of a job inherits this variable, which identifies it.
_MARK = "RINGAR_TEST_MARK"
_GRACE = 5.0
_SHARED_MEMORY = Path("/dev/shm")
_running: set[str] = set()
# What was in shared memory before the first test, or is the fault of an earlier test.
_known_left = {path.name for path in _SHARED_MEMORY.glob("*ringar*")}


@dataclass
class JobResult:
    """Hold the result of a job.

    Attributes:
        code: the exit code, negative for a signal as in `subprocess`; None: past its deadline.
        stdout: the standard output of the job.
        stderr: the standard error of the job.
        seconds: the duration of the job.
        leftovers: the command lines of processes that outlived the job (and were killed then).
    """

    code: int | None
    stdout: str
    stderr: str
    seconds: float
    leftovers: list[str] = field(default_factory=list)

    def check(self, code: int = 0) -> JobResult:
        """Return self; fail the test unless the job ended with `code` and no process is left."""
        assert self.code == code, f"expected exit code {code}\n{self}"
        assert not self.leftovers, f"processes outlived the job: {self.leftovers}\n{self}"
        return self

    def __str__(self) -> str:
        ending = "was stopped at its deadline" if self.code is None else f"ended with {self.code}"
        return (
            f"the job {ending} after {self.seconds:.1f} s\n"
            f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
        )


def run_job(
    np: int | None,
    program: str | Path | Sequence[str],
    *,
    args: Sequence[str] = (),
    launcher_args: Sequence[str] = (),
    deadline: float = 90.0,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    fresh: bool = False,
) -> JobResult:
    """Run a program on `np` ranks, in processes of its own, and return the result.

    Args:
        np: the number of ranks; None runs one plain process without the launcher.
        program: a Python script's path, Python source (a string with a line break in it), or a
            whole command as a list of words.
        args: the arguments of the script.
        launcher_args: further arguments of ringarrun.
        deadline: seconds after which the job is stopped; its Python processes then print the
            stacks of their threads.
        env: variables to add to the environment, or to remove from it (None).
        cwd: the folder to run in; default: the repository's root.
        fresh: whether all processes are new ones, none a fork of `warm_python.py`.
    """
    with tempfile.TemporaryDirectory(prefix="ringar-job-") as folder:
        command = [*_program(program, Path(folder)), *args]
        if np is not None:
            launcher = [sys.executable, "-m", "ringar.launchers", "-np", str(np)]
            command = [*launcher, *launcher_args, *command]
        return _run(command, deadline, _environment(env or {}), cwd or ROOT, fresh)


def _program(program: str | Path | Sequence[str], folder: Path) -> list[str]:
    if isinstance(program, str) and "\n" in program:
        script = folder / "script.py"
        script.write_text(textwrap.dedent(program))
        return [sys.executable, str(script)]
    if isinstance(program, str | Path):
        return [sys.executable, str(program)]
    return list(program)


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RINGAR_")}
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environment["PYTHONFAULTHANDLER"] = "1"
    environment["RINGAR_CALIBRATION"] = "off"
    environment["PYTHONPATH"] = os.pathsep.join(
        [PYTHONPATH, *filter(None, [environment.get("PYTHONPATH")])]
    )
    for name, value in changes.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    return environment


def _run(
    command: list[str], deadline: float, env: dict[str, str], cwd: Path, fresh: bool
) -> JobResult:
    mark = uuid.uuid4().hex
    start = time.monotonic()
    _running.add(mark)
    try:
        process = _start(command, {**env, _MARK: mark}, cwd, mark, fresh)
        launcher = process.pid if "ringar.launchers" in command else None
        stdout, stderr, code = _watch(process, mark, deadline, launcher)
        seconds = time.monotonic() - start
        return JobResult(code, stdout, stderr, seconds, _reap(mark, expected=code is not None))
    finally:
        _kill(mark)
        _running.discard(mark)


def _start(
    command: list[str], env: dict[str, str], cwd: Path, mark: str, fresh: bool
) -> subprocess.Popen[str] | warm.Process:
    if not fresh and warm.serves(command, ROOT):
        server = _warm_server()
        if read_once(env) == server.environment:
            return server.start(command, env, cwd, mark)
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


@functools.cache
def _warm_server() -> warm.Server:
    return warm.Server(_environment({}), ROOT)


def _watch(
    process: subprocess.Popen[str] | warm.Process, mark: str, deadline: float, spared: int | None
) -> tuple[str, str, int | None]:
    try:
        stdout, stderr = process.communicate(timeout=deadline)
        return stdout, stderr, process.returncode
    except subprocess.TimeoutExpired:
        pass
    # Python answers SIGABRT with the stacks of its threads (PYTHONFAULTHANDLER). The launcher stays
    # to forward them. Stopped processes must continue for that.
    for pid in processes(mark):
        if pid != spared:
            _signal(pid, signal.SIGABRT)
            _signal(pid, signal.SIGCONT)
    try:
        stdout, stderr = process.communicate(timeout=_GRACE)
    except subprocess.TimeoutExpired:
        _kill(mark)
        stdout, stderr = process.communicate()
    return stdout, stderr, None


def _reap(mark: str, expected: bool) -> list[str]:
    """Kill the rest of a job; return the command lines of processes that should have ended."""
    give_up = time.monotonic() + (_GRACE if expected else 0.0)
    while (left := processes(mark)) and time.monotonic() < give_up:
        time.sleep(0.05)
    lines = [command_line(pid) for pid in left]
    _kill(mark)
    return lines if expected else []


def processes(mark: str) -> list[int]:
    """Return the processes, except zombies, with `mark` in their environment or as their name."""
    entry_of_mark = f"{_MARK}={mark}".encode()
    name = mark[:NAME_LENGTH].encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                has_name = (entry / "comm").read_bytes().strip() == name
                if entry_of_mark in environment or (has_name and environment != [b""]):
                    pids.append(int(entry.name))
            except OSError:  # it ended, or it is not ours
                continue
    return pids


def left_in_shared_memory(seconds: float = _GRACE) -> set[str]:
    """Returns what ringar has left in /dev/shm, once jobs that start now have taken it away.

    A file there has a name while the ranks of a host open it. Jobs of other tests may do that. A
    file that stays is named once, by the test that left it.
    """
    give_up = time.monotonic() + seconds
    left = None
    while left != set() and time.monotonic() < give_up:
        names = {path.name for path in _SHARED_MEMORY.glob("*ringar*")} - _known_left
        left = names if left is None else left & names
        time.sleep(0.02)
    _known_left.update(left or ())
    return left or set()


def kill_all() -> None:
    """Kill every process of every running job of this process."""
    for mark in list(_running):
        _kill(mark)


def _kill(mark: str) -> None:
    # Repeat: a process may fork during the search.
    for _ in range(50):
        left = processes(mark)
        if not left:
            return
        for pid in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.02)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def command_line(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        text = "(ended)"
    return f"{pid}: {text}"
