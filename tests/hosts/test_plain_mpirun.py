"""A script started by mpirun alone, on this machine: that of Open MPI, and that of MPICH."""

from __future__ import annotations

import site
import sys
from pathlib import Path

import pytest

from benchmarks.harness import environments, launch
from tests.faults.outcomes import Outcomes, read_outcomes
from tests.hosts.scenarios import SCRIPTS, run_scenarios_on
from tests.plugin import run_job
from tests.plugin.jobs import left_in_shared_memory

pytestmark = [pytest.mark.job, pytest.mark.deadline(300)]

SCRIPT = SCRIPTS / "collectives.py"


def check(outcomes: Outcomes) -> None:
    outcomes.job.check()
    for scenario in outcomes.records[0]:
        if not scenario.startswith(("where", "sent")):
            outcomes.expect_success(scenario)
    outcomes.expect_success("works at the end")
    assert not left_in_shared_memory()


@pytest.mark.usefixtures("has_open_mpi")
def test_open_mpi(tmp_path: Path) -> None:
    check(run_scenarios_on(None, 2, SCRIPT, tmp_path, deadline=90))


def mpich_environment() -> Path:
    """An environment with MPICH, which sees the packages of this one: TensorFlow is large."""
    try:
        folder = environments.ensure("mpich-with-tensorflow", ("mpi4py>=4.1", "mpich>=5"))
    except environments.CannotInstallError as error:
        pytest.skip(f"no MPICH: {error}")
    (packages,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()]
    (packages / "of-the-tests.pth").write_text("".join(lines))
    return folder


@pytest.mark.slow
def test_mpich(tmp_path: Path) -> None:
    command = launch.mpich(mpich_environment(), 3, [str(SCRIPT), str(tmp_path)])
    result = run_job(None, command, deadline=120)
    check(read_outcomes(result, tmp_path, 3))


@pytest.mark.slow
def test_a_launcher_of_another_mpi_is_named(has_open_mpi: None, tmp_path: Path) -> None:
    """MPICH's mpirun with this environment's mpi4py, which is on Open MPI: jobs of one rank."""
    mpirun = mpich_environment() / "bin" / "mpirun"
    result = run_job(
        None, [str(mpirun), "-np", "2", sys.executable, str(SCRIPT), str(tmp_path)], deadline=60
    )
    assert result.code not in (0, None), result
    assert "expected 2 ranks, as many as were started, but mpi4py's MPI (Open MPI" in result.stderr
    assert "They were started by an mpirun or srun that speaks PMI, as MPICH does" in result.stderr
