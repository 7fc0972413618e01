"""What ringarrun makes of the standard error of mpirun, for which a shell script stands in."""

from __future__ import annotations

import os

import pytest

from ringar.launchers.plan.program import Program
from ringar.launchers.start import supervisor
from ringar.launchers.start.command import Command, Start
from ringar.launchers.start.hosts_plan import HostsPlan
from ringar.launchers.start.mpi import OPEN_MPI, Mpi

WELL = "ringarrun ab12.{0}: rank {0} of 2 on h{0} ended well\n"
FAILED = "ringarrun ab12.1: rank 1 of 2 on h1 failed with exit code 3\n"
SHOWN = "ringarrun: rank 1 of 2 on h1 failed with exit code 3\n"


def run(
    capfd: pytest.CaptureFixture[str], *pieces: str, code: int = 0, end: str = "exit"
) -> tuple[int, str]:
    """The exit code and the screen of a job whose mpirun says `pieces`, and then ends."""
    # Each piece is read by itself; none is empty.
    script = f'for piece; do printf %s "$piece" >&2; sleep 0.03; done; {end} {code}'
    job = HostsPlan(
        job="ab12",
        launcher="mpirun",
        start=Start((), 2, (), (), Mpi(OPEN_MPI, "5.0.11")),
        command=Command(("sh", "-c", script, "mpirun", *pieces)),
        environment=os.environ,
        python="python",
        program=Program(("train.py",)),
        failure_grace=60.0,
    )
    capfd.readouterr()
    return supervisor.run(job), capfd.readouterr().err


def test_reports_of_a_good_end_are_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "[0] hi\n", WELL.format(0), WELL.format(1)) == (0, "[0] hi\n")


@pytest.mark.parametrize("length", [10_000, 100_000])
def test_a_report_behind_an_unfinished_line(capfd: pytest.CaptureFixture[str], length: int) -> None:
    part = "[0] " + "x" * length
    assert run(capfd, part, WELL.format(1), "yz\n", WELL.format(0)) == (0, part + "yz\n")


def test_a_failure_behind_an_unfinished_line(capfd: pytest.CaptureFixture[str]) -> None:
    code, screen = run(capfd, "[0] hi\n", "[0] last", FAILED, " words\n", code=255)
    assert code == 3
    assert screen == f"[0] hi\n[0] last\n{SHOWN} words\n{SHOWN}"
    code, screen = run(capfd, "[0] hi\n", FAILED, code=255)
    assert code == 3
    assert screen == f"[0] hi\n{SHOWN}"


def test_a_report_in_two_reads(capfd: pytest.CaptureFixture[str]) -> None:
    part = "x" * ((1 << 16) - 10)
    assert run(capfd, part + FAILED[:20], FAILED[20:], code=1) == (3, f"{part}\n{SHOWN}")


def test_the_cause_is_last(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, FAILED, "unfinished", code=1) == (3, f"{SHOWN}unfinished\n{SHOWN}")


def test_reports_of_another_job_are_output(capfd: pytest.CaptureFixture[str]) -> None:
    """Of a ringarrun that a rank runs, or of one that it quotes."""
    lines = f"[0] {SHOWN}[0] {FAILED.replace('ab12', 'cd34')}"
    assert run(capfd, lines, WELL.format(0), WELL.format(1)) == (0, lines)


def test_an_mpirun_that_a_signal_ends(capfd: pytest.CaptureFixture[str]) -> None:
    """After all ranks have ended well: its exit code is the shell's for a signal."""
    assert run(capfd, WELL.format(0), WELL.format(1), end="kill -KILL $$; exit") == (137, "")


def test_a_rank_without_report_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    code, screen = run(capfd, WELL.format(1))
    assert code == 1
    assert "mpirun has ended without rank 0; a host may have died" in screen
