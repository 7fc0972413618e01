"""A Python environment for each peer that cannot live beside the others, made once and kept."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import ROOT

FOLDER = ROOT / "build" / "bench"


class CannotInstallError(RuntimeError):
    """pip could not install what a peer needs; the message is its last line."""


def ensure(name: str, requirements: tuple[str, ...], *, deadline: float = 900) -> Path:
    """The folder of the environment for ``name``, with ``requirements`` installed.

    Raises:
        CannotInstallError: they cannot be installed here.
    """
    folder = FOLDER / name
    stamp = folder / ("installed-" + hashlib.sha256(repr(requirements).encode()).hexdigest()[:12])
    if not requirements or stamp.exists():
        return folder
    print(f"installing {', '.join(requirements)} for {name} ...", file=sys.stderr, flush=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *requirements]
    for command in ([sys.executable, "-m", "venv", "--clear", str(folder)], pip):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=deadline, check=False
            )
        except subprocess.TimeoutExpired:
            raise CannotInstallError(f"pip took more than {deadline:.0f} s") from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise CannotInstallError((lines or done.stderr.splitlines() or ["pip failed"])[-1])
    stamp.touch()
    return folder
