"""Real jobs under a real SLURM of one node, which is started for these tests."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringar.launchers.start import mpi, srun
from tests.launchers import slurm
from tests.launchers.helpers import LAUNCHER, clean_environment
from tests.launchers.programs import write
from tests.plugin.jobs import ROOT


def obstacle() -> str:
    """Why these tests cannot run; "" if they can."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    return slurm.obstacle()


pytestmark = [
    pytest.mark.job,
    pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "-"),
]

SUM = "from mpi4py import MPI; w = MPI.COMM_WORLD; print(w.rank, w.size, w.allreduce(w.rank))"
RANKS = (sys.executable, "-c", SUM)

TRAIN = """
import numpy as np
import ringar
ringar.init()
total = ringar.allreduce(np.ones(3), op=ringar.Sum)
print(ringar.rank(), ringar.size(), total.tolist())
"""


@pytest.fixture(scope="module")
def environ() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, slurm.cluster(Path(folder)) as env:
        keep = {name: env[name] for name in ("SLURM_CONF", "PATH")}
        yield {**clean_environment(), **keep}


def run(environ: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run `command` and wait for its end."""
    return subprocess.run(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def allocate(
    environ: dict[str, str], *command: str, tasks: int = 2
) -> subprocess.CompletedProcess[str]:
    """Run `command` in an allocation and wait for its end; no process of a step may be left."""
    result = run(environ, "salloc", "--quiet", f"--ntasks={tasks}", *command)
    steps = subprocess.run(
        ["squeue", "--noheader", "--steps"], env=environ, capture_output=True, text=True, timeout=30
    )
    assert steps.stdout == ""
    return result


@pytest.fixture
def train(tmp_path: Path) -> tuple[str, ...]:
    """The command of a rank that reduces with ringar."""
    (tmp_path / "train.py").write_text(TRAIN)
    return (sys.executable, str(tmp_path / "train.py"))


@pytest.fixture(scope="module")
def how(environ: dict[str, str]) -> str:
    """The launcher that `auto` must choose here: srun where it can start the MPI that is here."""
    library = mpi.of_mpi4py(sys.executable, environ)
    kind = srun.pmi(library)
    trial = allocate(environ, "srun", f"--mpi={kind}", *RANKS)
    return "srun" if sorted(trial.stdout.splitlines()) == ["0 2 1", "1 2 1"] else "mpirun"


@pytest.mark.parametrize("options", [(), ("--launcher", "mpirun"), ("--link", "tcp")])
def test_ranks_of_an_allocation_form_one_world(
    environ: dict[str, str], how: str, options: tuple[str, ...], train: tuple[str, ...]
) -> None:
    result = allocate(environ, *LAUNCHER, *options, "--verbose", *train, tasks=3)
    assert result.returncode == 0, result.stderr
    ranks = [f"[{rank}] {rank} 3 [3.0, 3.0, 3.0]" for rank in range(3)]
    assert sorted(result.stdout.splitlines()) == ranks
    if "tcp" in options:
        started = r"-m ringar\.launchers\.start\.spread .*:3"
    else:
        started = rf"/{'mpirun' if options else how} .*-?np?[a-z]*[ =]3"
    assert re.search(rf"^ringarrun: .*{started}", result.stderr, re.MULTILINE)


def test_an_agent_reaches_hosts_that_are_not_of_the_allocation(
    environ: dict[str, str], tmp_path: Path
) -> None:
    write(tmp_path / "agent", f"""echo "$1" >>{tmp_path}/asked; shift; exec sh -c "$*" """)
    hosts = ("-H", f"{socket.gethostname()}:1,127.0.0.2:1", "--link", "mpi")
    options = ("--ssh-command", str(tmp_path / "agent"))
    result = allocate(environ, *LAUNCHER, *hosts, *options, "sh", "-c", "echo hi")
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0] hi", "[1] hi"]
    assert (tmp_path / "asked").read_text() == "127.0.0.2\n" * 2  # the check, and mpirun


def test_srun_is_refused_where_it_cannot_start_the_mpi(environ: dict[str, str], how: str) -> None:
    result = allocate(environ, *LAUNCHER, "--launcher", "srun", *RANKS)
    if how == "srun":
        assert sorted(result.stdout.splitlines()) == ["[0] 0 2 1", "[1] 1 2 1"]
    else:
        assert result.returncode == 2
        assert "choose --launcher mpirun" in result.stderr


def test_more_ranks_than_tasks(environ: dict[str, str]) -> None:
    result = allocate(environ, *LAUNCHER, "-np", "3", *RANKS)
    assert result.returncode == 2
    assert "at most 2 ranks, the slots of 1 host (of the SLURM allocation)" in result.stderr


@pytest.mark.parametrize(
    ("link", "end", "code"),
    [("auto", "exit 3", 3), ("auto", "kill -9 $$", 137), ("tcp", "kill -9 $$", 137)],
)
def test_a_failed_rank_ends_the_job(
    environ: dict[str, str], link: str, end: str, code: int
) -> None:
    rank = "${RINGAR_RANK:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$SLURM_PROCID}}}"
    program = ("sh", "-c", f"if [ {rank} = 1 ]; then {end}; fi; sleep 0.5; echo last; sleep 100")
    started = time.monotonic()
    result = allocate(environ, *LAUNCHER, "--link", link, "--failure-grace", "2", *program)
    assert time.monotonic() - started < 40
    assert "rank 1 of 2 on " in result.stderr.splitlines()[-1]
    assert result.stdout == "[0] last\n"
    assert result.returncode == code


@pytest.mark.parametrize("link", ["auto", "tcp"])
def test_kill_grace_is_time_to_save(environ: dict[str, str], link: str, tmp_path: Path) -> None:
    rank = f"trap 'sleep 8; echo saved; exit 143' TERM; mktemp {tmp_path}/XXXX; sleep 100 & wait"
    job = (*LAUNCHER, "--link", link, "--kill-grace", "30", "sh", "-c", rank)
    # On a busy machine mpirun may not pass signals on yet when the ranks begin.
    ready = f"until [ $(ls {tmp_path} | wc -l) = 2 ]; do sleep 0.1; done; sleep 2"
    stop = f'"$@" & {ready}; kill $!; wait $!'
    result = allocate(environ, "sh", "-c", stop, "sh", *job)
    assert result.stdout.count("saved\n") == 2, result.stderr
    assert result.returncode == 143


def test_values_of_variables_survive(environ: dict[str, str]) -> None:
    show = (sys.executable, "-S", "-c", "import os; print(repr(os.environ['MY_A']))")
    result = allocate(environ, *LAUNCHER, "-x", "MY_A=1 2,3\n4=5", *show)
    value = "'1 2,3\\n4=5'"
    assert sorted(result.stdout.splitlines()) == [f"[0] {value}", f"[1] {value}"], result.stderr


def test_the_job_file(environ: dict[str, str], tmp_path: Path, train: tuple[str, ...]) -> None:
    """launchers/templates/slurm.sbatch, as it is but for what one small node cannot give."""
    home = tmp_path / "environment"
    (home / "bin").mkdir(parents=True)
    (home / "bin/activate").write_text(f'export PATH="{home}/bin:$PATH"\n')
    write(home / "bin/ringarrun", f'exec {sys.executable} -m ringar.launchers "$@"')
    output = tmp_path / "out"
    smaller = ("--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", f"--output={output}")
    result = subprocess.run(
        [
            *("sbatch", "--wait", *smaller, str(ROOT / "launchers/templates/slurm.sbatch")),
            *train,
        ],
        env={**environ, "RINGAR_ENVIRONMENT": str(home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    text = output.read_text()
    assert result.returncode == 0, text
    assert {f"[{rank}] {rank} 2 [2.0, 2.0, 2.0]" for rank in (0, 1)} <= set(text.splitlines())


def test_the_job_file_of_scaling(environ: dict[str, str], tmp_path: Path) -> None:
    home, output = tmp_path / "environment", tmp_path / "out"
    (home / "bin").mkdir(parents=True)
    (home / "bin/activate").write_text(f'export PATH="{home}/bin:$PATH"\n')
    write(home / "bin/ringarrun", f'exec {sys.executable} -m ringar.launchers "$@"')
    write(home / "bin/python", f'exec {sys.executable} "$@"')
    smaller = ("--nodes=1", "--ntasks-per-node=2", f"--output={output}")
    options = ("--models", "mlp", "--rounds", "1", "--seconds", "0.01")
    job_file = "benchmarks/scaling/slurm.sbatch"
    result = subprocess.run(
        ["sbatch", "--wait", *smaller, job_file, *options, "--output", str(tmp_path / "scaling")],
        env={**environ, "RINGAR_ENVIRONMENT": str(home)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert result.returncode == 0, output.read_text()
    rows = json.loads((tmp_path / "scaling.json").read_text())["rows"]
    assert [(row["way"], row["ranks"], row["wrong"]) for row in rows] == [
        (way, ranks, 0) for way in ("weak", "strong") for ranks in (1, 2)
    ]


def test_hosts_that_are_named_outside_of_an_allocation(environ: dict[str, str], how: str) -> None:
    """The node is asked by srun, in a job of its own, and then the ranks are started there."""
    if how != "srun":
        pytest.skip("srun cannot start ranks of this MPI here")
    for name, code in ((socket.gethostname(), 0), ("elsewhere", 1)):
        options = ["--launcher", "srun", "-H", f"{name}:2", "--mpi-args=--time=5"]
        result = run(environ, *LAUNCHER, *options, *RANKS)
        assert result.returncode == code, result.stderr
        if code:
            assert "1 of 1 host cannot take part; nothing was started" in result.stderr
            assert "elsewhere: no answer through srun: srun: error: " in result.stderr
        else:
            assert sorted(result.stdout.splitlines()) == ["[0] 0 2 1", "[1] 1 2 1"]


def test_a_script_of_plain_srun(environ: dict[str, str], how: str, train: tuple[str, ...]) -> None:
    if how != "srun":
        pytest.skip("srun cannot start ranks of this MPI here")
    kind = srun.pmi(mpi.of_mpi4py(sys.executable, os.environ))
    result = allocate(environ, "srun", "--ntasks=2", f"--mpi={kind}", *train)
    assert result.returncode == 0, result.stderr
    ranks = ["0 2 [2.0, 2.0, 2.0]", "1 2 [2.0, 2.0, 2.0]"]
    assert sorted(result.stdout.splitlines()) == ranks
