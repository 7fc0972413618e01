"""The guard of one rank, without MPI: started with the variables that mpirun or srun would set."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ringar.launchers.errors import UsageError
from ringar.launchers.installation import ringar_version
from ringar.launchers.start.guard import Place, place
from ringar.launchers.start.host_guard import Control, take
from ringar.launchers.supervise.reports import reports
from tests.launchers.helpers import QUICK, Launcher, python, shell, wait_until

GUARD = (sys.executable, "-m", "ringar.launchers.start.guard", "--job", "test", "--grace", "0.1")
SECOND_OF_THREE = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def guard(
    *arguments: str, text: str | None = None, env: Mapping[str, str] = SECOND_OF_THREE
) -> subprocess.CompletedProcess[str]:
    stdin = subprocess.DEVNULL if text is None else subprocess.PIPE
    with Launcher(*arguments, env=env, stdin=stdin, command=GUARD) as launcher:
        return launcher.finish(text=text)


def test_places() -> None:
    assert place(SECOND_OF_THREE) == Place(1, 3, 1, 2)
    hydra = {"PMI_RANK": "4", "PMI_SIZE": "6", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"}
    assert place(hydra) == Place(4, 6, 1, 3)
    slurm = {
        "SLURM_PROCID": "4",
        "SLURM_NTASKS": "5",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    }
    assert place(slurm) == Place(4, 5, 0, 1, by_srun=True)
    # mpirun inside an allocation: srun has started its daemons only.
    assert place({**slurm, **SECOND_OF_THREE}) == Place(1, 3, 1, 2)


def test_nobody_has_started_it() -> None:
    with pytest.raises(UsageError, match="expected the variables of a rank, as mpirun and srun"):
        place({})


def test_the_rank_gets_cpus_and_what_mpi_said_but_no_place() -> None:
    code = (
        "import os; print(*(f'{n}={v}' for n, v in sorted(os.environ.items()) "
        "if n.startswith('RINGAR_') or n == 'OMPI_COMM_WORLD_RANK'), "
        "len(os.sched_getaffinity(0)))"
    )
    result = guard("--bind-to", "numa", "--", *python(code))
    words = result.stdout.split()
    assert words[0] == "OMPI_COMM_WORLD_RANK=1"
    names = [word.partition("=")[0] for word in words[1:-1]]
    assert names == ["RINGAR_BOUND_CPUS", "RINGAR_JOB", "RINGAR_TEST_MARK"]
    assert "RINGAR_JOB=test.1" in words


def test_files_of_mpi_are_inherited() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    command = [*GUARD, "--", *python(f"import os; os.write({writer}, b'through')")]
    subprocess.run(
        command, env={**os.environ, **SECOND_OF_THREE}, pass_fds=(writer,), timeout=60, check=True
    )
    os.close(writer)
    with open(reader) as file:
        assert file.read() == "through"


def test_output_is_whole_lines_with_the_rank(tmp_path: Path) -> None:
    code = "printf 'one\\r1/2\\r2/2\\ntw'; sleep 0.3; printf o; cat; echo err >&2"
    result = guard("--prefix", "--output-filename", str(tmp_path), "--", *shell(code), text="in\n")
    assert result.stdout == "[1] 2/2\n[1] twoin\n"
    assert re.fullmatch(
        r"\[1\] err\nringarrun test\.1: rank 1 of 3 on \S+ ended well\n", result.stderr
    )
    assert (tmp_path / "rank.1/stdout").read_bytes() == b"one\r1/2\r2/2\ntwoin\n"
    assert (tmp_path / "rank.1/stderr").read_text() == "err\n"


@pytest.mark.parametrize(
    ("code", "exit_code", "says"),
    [
        ("exit 3", 3, "failed with exit code 3"),
        ("kill -9 $$", 137, "was killed by signal 9 (SIGKILL); the system may have run out of"),
        ("echo PeerLostError >&2; exit 1", 1, "failed with exit code 1; it had lost a peer"),
    ],
)
def test_a_failure_is_reported_and_held_back(code: str, exit_code: int, says: str) -> None:
    words = ("--grace", "0.6", "--", *shell(code))
    with Launcher(*words, env=SECOND_OF_THREE, command=GUARD) as launcher:
        assert launcher.process.stderr is not None
        while not (report := launcher.process.stderr.readline()).startswith("ringarrun"):
            assert report, "expected a report, received the end of the output"
        reported = time.monotonic()
        result = launcher.finish()
    assert time.monotonic() - reported > 0.4  # the grace, without the time to read the report
    assert result.returncode == exit_code
    report = report.rstrip()
    assert report.startswith("ringarrun test.1: rank 1 of 3 on ")
    assert says in report
    match = reports("test").search(report.encode())
    assert match is not None
    assert match["rank"] == b"1"
    assert not match["well"]
    assert int(match["number"]) in (exit_code, exit_code - 128)


def test_a_report_comes_in_one_piece() -> None:
    """For mpirun reads some kilobytes at a time: a slow reader finds the report alone."""
    reader, writer = os.pipe()
    words = ("--", *python("import os; os.write(2, b'x' * 5000)"))
    with Launcher(*words, env=SECOND_OF_THREE, command=GUARD, stderr=writer) as launcher:
        os.close(writer)
        pieces = []
        while piece := os.read(reader, 4096):
            pieces.append(piece)
            time.sleep(0.2)
        assert launcher.process.wait(20) == 0
    os.close(reader)
    assert b"".join(pieces[:-1]) == b"x" * 5000 + b"\n"
    assert pieces[-1].startswith(b"ringarrun test.1: rank 1 of 3 on ")
    assert pieces[-1].endswith(b" ended well\n")


def test_a_program_that_is_not_there() -> None:
    result = guard("--", "no-such-program")
    assert result.returncode == 127
    assert "no-such-program: expected a program to run" in result.stderr


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"ringar": "0.0.1"}, "expected ringar 0.0.1, as on the launcher's host, received"),
        ({"folder": "/none"}, "expected the folder /none, which ranks start in: No such file"),
    ],
)
def test_a_host_that_differs_takes_no_ranks(change: dict[str, str], error: str) -> None:
    """Also one that joins an elastic job, and that nobody has asked before."""
    job = {"ringar": ringar_version(), "folder": os.getcwd(), "environment": {}, "hosts": []}

    class Answers(Control):
        def next(self) -> dict[str, Any]:
            return {**job, **change}

    with pytest.raises(UsageError, match=re.escape(error)):
        take(Answers(), argparse.Namespace(command=["true"]))


def test_what_the_rank_leaves_behind_ends_with_it() -> None:
    words = shell("sleep 100 & setsid sleep 100 & exit 0")
    assert guard("--", *words, env={**SECOND_OF_THREE, **QUICK}).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_rank_ends_with_its_guard(number: int) -> None:
    code = "trap '' TERM; setsid sleep 100 & echo ready; sleep 100; sleep 100"
    env = {**SECOND_OF_THREE, **QUICK}
    with Launcher("--", *shell(code), env=env, command=GUARD) as launcher:
        assert launcher.process.stdout is not None
        assert launcher.process.stdout.readline() == "ready\n"
        launcher.signal(number)
        wait_until(launcher.is_over, "the end of the rank", 20)


def test_the_rank_ends_when_the_daemon_is_gone() -> None:
    """A shell plays mpirun's daemon; killed, it says nothing to the guard."""
    daemon = shell('"$@" & wait')
    words = (*daemon, "daemon", *GUARD, "--", *shell("echo ready; sleep 100"))
    with Launcher(*words[1:], env=SECOND_OF_THREE, command=words[:1]) as launcher:
        assert launcher.process.stdout is not None
        assert launcher.process.stdout.readline() == "ready\n"
        launcher.signal(signal.SIGKILL)
        wait_until(launcher.is_over, "the end of guard and rank", 20)
