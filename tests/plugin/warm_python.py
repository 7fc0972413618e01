"""A Python that has imported TensorFlow and Keras, and forks the jobs of tests.

It has a single thread, so that a fork loses nothing. A fork gets the session, files, variables and
modules of a new Python. Where it becomes the launcher, it forks the ranks, too: they are its
children as ever.

What a fork cannot have of its own is the seed of Python's hashes, and what TensorFlow reads from
the environment while it is imported. A job whose environment differs there gets new processes, and
so does one whose test says `fresh=True`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import pickle
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TextIO

NAME_LENGTH = 15  # the most that the kernel keeps of the name of a process
LAUNCHER = ["-m", "ringar.launchers"]
_READ_ONCE = ("PYTHON", "TF_", "XLA_", "KERAS_", "CUDA_", "OMP_", "MALLOC_", "GLIBC_", "LD_")
_PR_SET_NAME = 15
_REQUEST = 1 << 18  # bytes, more than an environment has


def read_once(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process reads when it begins, or imports TensorFlow."""
    return {name: environment[name] for name in environment if name.startswith(_READ_ONCE)}


def serve(requests: socket.socket) -> None:
    """Fork jobs until the test run has ended."""
    packages = {name.split(".")[0] for name in sys.modules}
    jobs: dict[int, tuple[int, socket.socket]] = {}
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    gc.freeze()
    while True:
        for key, _ in selector.select():
            if key.fileobj is requests:
                data, files, _, _ = socket.recv_fds(requests, _REQUEST, 4)
                if not data:
                    return
                *outputs, end = files
                pid = _fork_job(data, outputs, packages)
                pidfd = os.pidfd_open(pid)
                jobs[pidfd] = pid, socket.socket(fileno=end)
                jobs[pidfd][1].send(_bytes(pid))
                selector.register(pidfd, selectors.EVENT_READ)
            else:
                selector.unregister(key.fd)
                os.close(key.fd)
                pid, job = jobs.pop(key.fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with job, contextlib.suppress(OSError):  # nobody waits for it any more
                    job.send(_bytes(code))


def _bytes(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)


def _fork_job(request: bytes, standard_files: Sequence[int], packages: set[str]) -> int:
    command, environment, cwd, mark = pickle.loads(request)
    if (pid := os.fork()) == 0:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, mark[:NAME_LENGTH].encode())
        os.setsid()
        become(command, environment, cwd, standard_files, packages)
    for file in standard_files:
        os.close(file)
    return pid


class Rank:
    """A rank that a launcher forks instead of starting a new Python, as `subprocess.Popen` does."""

    packages: ClassVar[set[str]] = set()  # those that a new Python finds imported

    def __init__(
        self, command: Sequence[str], *, stdin: int, stdout: int, stderr: int,
        env: Mapping[str, str], close_fds: bool, pass_fds: Sequence[int],
        start_new_session: bool, preexec_fn: Callable[[], None],
    ) -> None:  # fmt: skip
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            preexec_fn()
            if stdin == subprocess.DEVNULL:
                stdin = os.open(os.devnull, os.O_RDONLY)
            become(command, env, os.getcwd(), (stdin, stdout, stderr), self.packages, pass_fds)

    def wait(self) -> int:
        """Wait for the end of the process and return its exit code, as `Popen.wait` does."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def become(
    command: Sequence[str], environment: Mapping[str, str], cwd: str,
    standard_files: Sequence[int], packages: set[str], files: Sequence[int] = (),
) -> NoReturn:  # fmt: skip
    """Become the Python of `command`, after a fork.

    Args:
        command: `python SCRIPT ...` or `python -m MODULE ...`.
        environment: all its variables.
        cwd: the folder to run in.
        standard_files: become its standard input, output and error.
        packages: those that it finds imported, and whose loggers it finds.
        files: what else stays open.
    """
    for number, file in enumerate(standard_files):
        os.dup2(file, number)
    start = 3
    for file in sorted(files):
        os.closerange(start, file)
        start = file + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))
    gc.freeze()  # what the parent has made is never collected, and closes no file
    signal.set_wakeup_fd(-1)
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for names in (sys.modules, logging.root.manager.loggerDict):
        for name in [name for name in names if name.split(".")[0] not in packages]:
            del names[name]
    sys.stdin, sys.stdout, sys.stderr = (_standard_file(number) for number in range(3))
    faulthandler.enable(sys.stderr)
    sys.modules["numpy"].random.seed()
    Rank.packages = packages
    _leave(_run(list(command[1:])))


def _standard_file(number: int) -> TextIO:
    """Return `sys.stdin`, `sys.stdout` or `sys.stderr` as Python opens them for a pipe."""
    mode, errors = ("r" if number == 0 else "w"), ("backslashreplace" if number == 2 else "strict")
    file: Any = open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
    file.reconfigure(
        line_buffering=number == 2, write_through="PYTHONUNBUFFERED" in os.environ and number > 0
    )
    return file


def _run(words: list[str]) -> int:
    """Run a script or a module as `__main__`; return the exit code."""
    try:
        if words[0] == "-m":
            sys.argv, sys.path[0] = words[1:], os.getcwd()
            if words[:2] == LAUNCHER:
                _fork_ranks()
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
            main = types.ModuleType("__main__")
            main.__file__ = words[0]
            sys.modules["__main__"] = main
            exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), main.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        # Without the frame of this function.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _fork_ranks() -> None:
    """Let the launcher, which this process becomes, fork ranks that a warm Python can serve."""
    from ringar.launchers.supervise import ranks

    before = read_once(os.environ)

    def start(command: Sequence[str], **options: Any) -> Any:
        after = read_once(options["env"])
        ignored = {"PYTHONUNBUFFERED"}
        differ = {name for name, _ in before.items() ^ after.items()} - ignored
        is_python = command[0] == sys.executable and command[1].endswith(".py")
        if differ or not is_python or not options["close_fds"]:
            return subprocess.Popen(command, **options)
        return Rank(command, **options)

    setattr(ranks, "subprocess", types.SimpleNamespace(Popen=start))  # noqa: B010


def _leave(code: int) -> NoReturn:
    """End the process as Python does, without taking its objects apart."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    ctypes.PyDLL(None).exit(code & 0xFF)  # with the destructors of C++
    raise AssertionError("unreachable")


if __name__ == "__main__":
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose threads"
    serve(socket.socket(fileno=int(sys.argv[1])))
