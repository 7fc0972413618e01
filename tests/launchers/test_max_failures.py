"""`--max-failures`: as many ranks may fail while the others go on."""

from __future__ import annotations

import sys

import pytest

from tests.plugin import run_job

pytestmark = pytest.mark.job

# Ranks from FAILS on fail at once; the others take a moment.
PROGRAM = """
import os, sys, time
rank = int(os.environ["RINGAR_RANK"])
if rank >= int(sys.argv[1]):
    sys.exit(7)
time.sleep(1)
print("done", rank)
"""


def test_the_others_go_on_and_the_job_ends_well() -> None:
    job = run_job(3, PROGRAM, args=["2"], launcher_args=["--max-failures", "1"])
    assert job.code == 0, job.stderr
    assert job.stdout.count("done") == 2
    assert "rank 2 of 3 failed with exit code 7; the others go on (--max-failures)" in job.stderr


def test_one_failure_too_many_ends_the_job() -> None:
    job = run_job(3, PROGRAM, args=["1"], launcher_args=["--max-failures", "1"])
    assert job.code == 7
    assert "done" not in job.stdout


def test_a_job_whose_ranks_have_all_failed_has_failed() -> None:
    job = run_job(2, PROGRAM, args=["0"], launcher_args=["--max-failures", "5"])
    assert job.code == 7


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["-H", "a:1,b:1", "--launcher", "mpirun"], "expected a job on this host or one of"),
        (["--min-np", "1", "-np", "2"], "expected a job that is not elastic"),
    ],
)
def test_where_it_cannot_be_is_refused(options: list[str], error: str) -> None:
    options = [*options, "--max-failures", "1", "true"]
    job = run_job(None, [sys.executable, "-m", "ringar.launchers", *options])
    assert job.code == 2
    assert f"--max-failures: {error}" in job.stderr
