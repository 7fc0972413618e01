"""Jobs of tests that a Python forks which has imported TensorFlow and Keras: the side of the tests.

Most jobs compute less than these imports do. So each process that runs tests has one warm Python
(`warm_python.py`), which forks a process for each job whose script imports one of them.
"""

from __future__ import annotations

import os
import pickle
import re
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.plugin.warm_python import LAUNCHER, read_once

_PROGRAM = Path(__file__).with_name("warm_python.py")
_IMPORT = re.compile(r"^\s*(import|from) (tensorflow|keras)\b", re.MULTILINE)
_OF_TESTS = re.compile(r"^\s*from (tests[\w.]*) import", re.MULTILINE)


def serves(command: Sequence[str], root: Path) -> bool:
    """Return whether a job is a script, or ranks of one, that imports what a warm Python has.

    Args:
        command: of the job.
        root: the folder from which scripts import `tests`.
    """
    python, *words = command
    script = next((word for word in words if word.endswith(".py")), None)
    if python != sys.executable or script is None or (words[:2] != LAUNCHER and words[0] != script):
        return False
    return _imports_keras(Path(script), root, set())


def _imports_keras(file: Path, root: Path, files: set[Path]) -> bool:
    """Return whether a file imports TensorFlow or Keras, by itself or through the tests."""
    if file in files or not file.is_file():
        return False
    files.add(file)
    text = file.read_text()
    modules = (name.replace(".", "/") for name in _OF_TESTS.findall(text))
    return _IMPORT.search(text) is not None or any(
        _imports_keras(root / f"{module}.py", root, files) for module in modules
    )


class Server:
    """The warm Python of a test run; it ends with it."""

    def __init__(self, environment: Mapping[str, str], cwd: Path) -> None:
        self.environment = read_once(environment)
        self._requests, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with requests:
            self._process = subprocess.Popen(
                [sys.executable, str(_PROGRAM), str(requests.fileno())],
                pass_fds=[requests.fileno()], stdin=subprocess.DEVNULL, cwd=cwd,
                # A second thread of OpenBLAS would be lost in a fork.
                env={**environment, "OPENBLAS_NUM_THREADS": "1"}, start_new_session=True,
            )  # fmt: skip

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], cwd: Path, mark: str
    ) -> Process:
        """Start a job.

        Args:
            command: `python SCRIPT ARGUMENTS`, or `python -m ringar.launchers ... SCRIPT ...`.
            environment: all variables of its processes.
            cwd: the folder to run in.
            mark: what the names of its processes begin with.
        """
        request = pickle.dumps((list(command), dict(environment), str(cwd), mark))
        end, end_of_python = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipes = [os.pipe(), os.pipe()]
        with end_of_python, open(os.devnull) as stdin:
            files = [stdin.fileno(), *(write for _, write in pipes), end_of_python.fileno()]
            socket.send_fds(self._requests, [request], files)
        for _, write in pipes:
            os.close(write)
        return Process(command, end, [read for read, _ in pipes])


class Process:
    """A job of a warm Python, with those parts of `subprocess.Popen` that tests use."""

    def __init__(self, command: Sequence[str], end: socket.socket, outputs: list[int]) -> None:
        self.args = command
        self.returncode: int | None = None
        self._texts = {descriptor: bytearray() for descriptor in outputs}
        self._end = end
        self._selector = selectors.DefaultSelector()
        self._selector.register(end, selectors.EVENT_READ)
        for output in outputs:
            self._selector.register(output, selectors.EVENT_READ)
        if not (data := end.recv(8)):
            raise RuntimeError("the warm Python of this test run has ended; see its errors")
        self.pid = int.from_bytes(data, "little", signed=True)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return the outputs when the job has ended and nobody can write more.

        Raises:
            subprocess.TimeoutExpired: it has not ended in `timeout` seconds; call again.
        """
        give_up = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while self._selector.get_map():
            rest = None if timeout is None else give_up - time.monotonic()
            if rest is not None and rest <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            for key, _ in self._selector.select(rest):
                self._take(key.fileobj)
        stdout, stderr = (text.decode(errors="replace") for text in self._texts.values())
        return stdout, stderr

    def _take(self, file: Any) -> None:
        if file is self._end:
            self.returncode = int.from_bytes(self._end.recv(8), "little", signed=True)
        elif data := os.read(file, 1 << 16):
            self._texts[file] += data
            return
        self._selector.unregister(file)
        os.close(file) if isinstance(file, int) else file.close()
