"""Jobs of ringarrun in an environment with MPICH, whose mpirun is hydra."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.hosts.scenarios import SCRIPTS
from tests.hosts.test_plain_mpirun import mpich_environment
from tests.launchers.helpers import Launcher
from tests.launchers.programs import write

pytestmark = [pytest.mark.job, pytest.mark.deadline(300)]


@pytest.fixture(scope="module")
def python() -> str:
    """The Python whose mpi4py is on MPICH."""
    return str(mpich_environment() / "bin/python")


def launcher_of(python: str, *arguments: str, **variables: str) -> Launcher:
    command = (python, "-m", "ringar.launchers")
    return Launcher(*arguments, command=command, env={"TF_CPP_MIN_LOG_LEVEL": "3", **variables})


#: A job of MPI that imports no TensorFlow. Rank 0 fails as one that has lost a peer.
PROGRAM = """
import os, signal, sys, time
from mpi4py import MPI
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
print("ready: rank", rank, "of", size, flush=True)
MPI.COMM_WORLD.Barrier()
if sys.argv[1] == "die":
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    print("PeerLostError: rank 0 | rank 1 is gone", file=sys.stderr, flush=True)
    os._exit(1)
"""


def run(python: str, end: str, program: Sequence[str], ready: str) -> str:
    """Run a job of two ranks to its `end` ("end" or "die") and return the standard error."""
    options = ("-np", "2", "--launcher", "mpirun", "--verbose")
    with launcher_of(python, *options, python, *program, end) as launcher:
        result = launcher.finish()  # which sees to it that no process is left
    assert result.returncode == (137 if end == "die" else 0), result.stderr
    # hydra may tell of a killed process in a banner of its own, on standard output.
    of_ranks = [line for line in result.stdout.splitlines() if line.startswith("[")]
    lines = [f"[{rank}] {line}" for rank in (0, 1) for line in ready.format(rank).splitlines()]
    assert sorted(of_ranks) == lines
    assert end == "die" or len(of_ranks) == len(result.stdout.splitlines())
    assert f"{os.path.dirname(python)}/mpirun -np 2 -hosts localhost:2" in result.stderr
    if end == "die":
        last = result.stderr.splitlines()[-1]
        assert last.startswith("ringarrun: rank 1 of 2 on ")
        assert last.endswith(
            " was killed by signal 9 (SIGKILL); the system may have run out of memory"
        )
    return result.stderr


@pytest.mark.parametrize("end", ["end", "die"])
def test_jobs_end(python: str, end: str) -> None:
    text = run(python, end, ["-c", PROGRAM], "ready: rank {} of 2")
    assert ("[0] PeerLostError: rank 0" in text) == (end == "die")


@pytest.mark.slow
@pytest.mark.parametrize("end", ["end", "die"])
def test_jobs_of_ringar_end(python: str, end: str) -> None:
    ready = "None None None\nready: rank {} of 2, host 0"  # no variable is of Horovod
    text = run(python, end, [str(SCRIPTS / "loop.py")], ready)
    assert ("PeerLostError: rank 0 | allreduce" in text) == (end == "die")


def test_long_lines_of_one_rank_do_not_hide_the_end_of_another(python: str) -> None:
    """For hydra passes output on in pieces, which follow each other as they come."""
    code = (
        "import os, time; rank, end = int(os.environ['PMI_RANK']), time.monotonic() + 1\n"
        "while rank == 0 and time.monotonic() < end: os.write(2, b'x' * 60000 + b'\\n')\n"
        "time.sleep(rank * 0.2)"
    )
    options = ("-np", "4", "--launcher", "mpirun")
    with launcher_of(python, *options, python, "-S", "-c", code) as launcher:
        result = launcher.finish()
    assert result.returncode == 0, result.stderr[-1000:]
    assert set(result.stderr.splitlines()) == {"[0] " + "x" * 60000}


def test_an_agent_that_is_not_ssh_is_called_without_options_of_ssh(
    python: str, tmp_path: Path
) -> None:
    write(tmp_path / "agent", f"""echo "$1" >>{tmp_path}/asked; shift; exec sh -c "$*" """)
    agent = str(tmp_path / "agent")
    hosts = ("-H", "localhost:1,127.0.0.2:1", "--link", "mpi")
    with launcher_of(python, *hosts, "sh", "-c", "echo hi", RINGAR_SSH=agent) as launcher:
        result = launcher.finish()
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0] hi", "[1] hi"]
    assert (tmp_path / "asked").read_text() == "127.0.0.2\n" * 2  # the check, and hydra
