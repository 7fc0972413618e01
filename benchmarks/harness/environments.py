"""The Python environments of peers that cannot share one, made once and kept."""

from __future__ import annotations

import fcntl
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.machine import ROOT
from benchmarks.harness.processes import JobFailedError, run_command

FOLDER = ROOT / "build" / "bench"


class CannotInstallError(RuntimeError):
    """pip could not install what a peer needs; the message is its last error."""


def ensure(name: str, requirements: tuple[str, ...], *, deadline: float = 600) -> Path:
    """Makes the environment for `name` with its `requirements` and returns its folder.

    Raises:
        CannotInstallError: they cannot be installed here.
    """
    folder = FOLDER / name
    stamp = folder / ("installed-" + hashlib.sha256(repr(requirements).encode()).hexdigest()[:12])
    if not requirements or stamp.exists():
        return folder
    with _lock(name):
        if not stamp.exists():  # else another process has made it meanwhile
            _install(folder, name, requirements, deadline)
            stamp.touch()
    return folder


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """Lets one process at a time install an environment."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(folder: Path, name: str, requirements: tuple[str, ...], deadline: float) -> None:
    print(f"installing {', '.join(requirements)} for {name} ...", file=sys.stderr, flush=True)
    venv = [sys.executable, "-m", "venv", "--clear", str(folder)]
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *requirements]
    for command in (venv, pip):
        try:
            run_command(command, deadline=deadline)
        except JobFailedError as error:
            errors = [line for line in error.output.splitlines() if line.startswith("ERROR")]
            raise CannotInstallError(errors[-1] if errors else f"pip: {error}") from None
