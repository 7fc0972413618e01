from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ringar.launchers.errors import UsageError
from ringar.launchers.start.mpi import (
    MPICH,
    OPEN_MPI,
    Mpi,
    find_mpirun,
    identify,
    interpreter,
    of_mpi4py,
)
from tests.launchers import programs
from tests.launchers.programs import make_site, write

INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005"
CRAY = "MPI VERSION    : CRAY MPICH version 8.1.27.26 (ANL base 3.4a2)"


@pytest.mark.parametrize(
    ("text", "family", "version"),
    [
        ("Open MPI v5.0.11, package: Open MPI root@x, ident: 5.0.11", OPEN_MPI, "5.0.11"),
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to …", OPEN_MPI, "4.1.4"),
        ("mpirun (Open MPI) 5.1.0rc1", OPEN_MPI, "5.1.0rc1"),
        ("MPICH Version:      5.0.2\nMPICH Release date: …", MPICH, "5.0.2"),
        ("HYDRA build details:\n    Version:        4.0.2\n", MPICH, "4.0.2"),
        (INTEL, MPICH, "2021.11 (Intel)"),
        (CRAY, MPICH, "8.1.27.26"),
    ],
)
def test_what_an_mpi_says_of_itself(text: str, family: str, version: str) -> None:
    assert identify(text) == Mpi(family, version)


def test_unknown() -> None:
    assert identify("mpirun of another world 1.0") is None
    assert Mpi(MPICH, "4.1").major == 4
    assert Mpi(MPICH, "").major == 0


def test_which_python(tmp_path: Path) -> None:
    make_site(tmp_path / "bin", programs.MPICH)
    path = str(tmp_path / "bin")
    assert interpreter(["python", "train.py"], path) == f"{path}/python"
    assert interpreter(["./train.sh"], path) == sys.executable
    assert interpreter(["python3.99"], path) == sys.executable


def test_library_and_its_mpirun(tmp_path: Path) -> None:
    make_site(tmp_path / "bin", programs.OPEN_MPI_5)
    environ = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    library = of_mpi4py(f"{tmp_path}/bin/python", environ)
    assert library == Mpi(OPEN_MPI, "5.0.11")
    mpi = find_mpirun(library, f"{tmp_path}/bin/python", environ)
    assert mpi == Mpi(OPEN_MPI, "5.0.11", f"{tmp_path}/bin/mpirun")


def test_the_right_mpirun_is_found_behind_a_wrong_one(tmp_path: Path) -> None:
    make_site(tmp_path / "env", programs.OPEN_MPI_5)
    make_site(tmp_path / "site", programs.MPICH)
    environ = {"PATH": f"{tmp_path}/site:/bin"}
    mpi = find_mpirun(Mpi(MPICH, "4.0"), f"{tmp_path}/env/python", environ)
    assert mpi.place == f"{tmp_path}/site/mpirun"


def test_a_mismatch_names_both(tmp_path: Path) -> None:
    make_site(tmp_path / "bin", programs.MPICH)
    with pytest.raises(UsageError) as caught:
        find_mpirun(Mpi(OPEN_MPI, "5.0.11"), f"{tmp_path}/bin/python", {"PATH": "/bin"})
    message = str(caught.value)
    assert "expected an mpirun of Open MPI 5.0.11, the MPI of mpi4py in " in message
    assert f"{tmp_path}/bin/mpirun is of MPICH 5.0.2" in message


def test_no_mpirun(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is none beside.*pip install mpich"):
        find_mpirun(Mpi(MPICH, "5"), f"{tmp_path}/python", {"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo \"ModuleNotFoundError: No module named 'mpi4py'\" >&2; exit 1", "expected mpi4py"),
        ("echo 'RuntimeError: cannot load MPI library' >&2; exit 1", "cannot load MPI library;"),
        ("echo 'Another MPI 1.0'", "expected mpi4py to load Open MPI or .* received .'Another"),
    ],
)
def test_pythons_without_mpi(script: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "python", script)
    with pytest.raises(UsageError, match=message):
        of_mpi4py(f"{tmp_path}/python", {"PATH": "/usr/bin:/bin"})
