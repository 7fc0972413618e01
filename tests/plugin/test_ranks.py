"""The plugin itself: one run of pytest on several ranks, started as a job.

All but the test that every failure on several ranks depends on are slow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugin import JobResult, run_job

pytestmark = pytest.mark.job

PLUGINS = ["selection", "deadline", "fixtures", "ranks"]
RunTests = Callable[..., JobResult]
HEAD = """
import os, sys, time
import pytest
RANK = int(os.environ.get("RINGAR_RANK", "0"))
"""


@pytest.fixture
def run_tests(tmp_path: Path) -> RunTests:
    def run(np: int, source: str, *options: str) -> JobResult:
        (tmp_path / "test_it.py").write_text(HEAD + source)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "test_it.py"]
        for name in PLUGINS:
            command += ["-p", f"tests.plugin.{name}"]
        return run_job(np, [*command, *options], launcher_args=["--no-prefix"], cwd=tmp_path)

    return run


@pytest.mark.slow
def test_success_is_reported_once(run_tests: RunTests) -> None:
    result = run_tests(3, "def test_a(): pass\ndef test_b(rank, size): assert rank < size == 3\n")
    result.check()
    assert result.stdout.count("2 passed") == 1
    assert "passed" in result.stdout.splitlines()[-1]


def test_failure_on_one_rank_is_a_failure_on_all(run_tests: RunTests) -> None:
    source = "def test_a(): assert RANK != 1, 'only one is wrong'\ndef test_b(): pass\n"
    result = run_tests(3, source)
    result.check(code=1)
    assert "1 failed, 1 passed" in result.stdout
    assert "rank 1 | failed" in result.stdout
    assert "only one is wrong" in result.stdout


@pytest.mark.slow
def test_failure_in_a_fixture_skips_the_call_on_all(run_tests: RunTests) -> None:
    source = """
@pytest.fixture
def broken():
    if RANK == 0:
        raise ValueError("no fixture here")

def test_a(broken):
    print("the call ran", file=sys.__stderr__)
    assert False, "the call ran"
"""
    result = run_tests(2, source)
    result.check(code=1)
    assert "no fixture here" in result.stdout
    assert "the call ran" not in result.stdout.replace('"the call ran"', "")
    assert "1 error" in result.stdout


@pytest.mark.slow
def test_ranks_that_differ_in_skipping_fail(run_tests: RunTests) -> None:
    result = run_tests(2, "def test_a():\n    if RANK: pytest.skip('not here')\n")
    result.check(code=1)
    assert "the ranks differ: passed, skipped" in result.stdout


@pytest.mark.slow
def test_skip_and_xfail_on_all_ranks_stay_what_they_are(run_tests: RunTests) -> None:
    source = """
def test_a(): pytest.skip("nowhere")

@pytest.mark.xfail(reason="known")
def test_b(): assert False
"""
    result = run_tests(2, source)
    result.check()
    assert "1 skipped, 1 xfailed" in result.stdout


@pytest.mark.slow
def test_ranks_with_different_tests_are_refused(run_tests: RunTests) -> None:
    result = run_tests(2, "if RANK:\n    def test_extra(): pass\ndef test_a(): pass\n")
    assert result.code not in (0, None)
    assert "test_extra" in result.stdout + result.stderr


@pytest.mark.slow
def test_error_in_collection_of_one_rank_ends_all(run_tests: RunTests) -> None:
    result = run_tests(2, "if RANK: raise ValueError('cannot import')\ndef test_a(): pass\n")
    assert result.code not in (0, None)
    assert "cannot import" in result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_ends_the_run(run_tests: RunTests, victim: int) -> None:
    source = f"""
def test_a(exchange):
    if RANK == {victim}:
        os._exit(7)
    exchange(None)
"""
    result = run_tests(2, source)
    assert result.code == 7, str(result)
    assert not result.leftovers


@pytest.mark.slow
@pytest.mark.parametrize("np", [1, 2])
def test_a_hung_test_is_ended_with_its_stack(run_tests: RunTests, np: int) -> None:
    source = """
def sleep_for_ever():
    print("printed before", file=sys.stderr)
    time.sleep(1000)

@pytest.mark.deadline(2)
def test_a(size):
    if RANK == size - 1:
        sleep_for_ever()
"""
    result = run_tests(np, source)
    assert result.code == 124, str(result)
    assert "in sleep_for_ever" in result.stderr
    assert "printed before" in result.stderr
    assert "test_a did not end in 2 s" in result.stderr
    assert result.seconds < 30


@pytest.mark.slow
def test_a_hung_test_ends_one_of_two_processes_alone(run_tests: RunTests) -> None:
    source = """
@pytest.mark.deadline(2)
def test_a(): time.sleep(1000)
@pytest.mark.parametrize("i", range(4))
def test_b(i): pass
"""
    result = run_tests(1, source, "-n", "2")
    result.check(code=1)
    assert "1 failed, 4 passed" in result.stdout
    assert "test_a did not end in 2 s" in result.stderr


@pytest.mark.slow
def test_rare_variants_are_slow(run_tests: RunTests) -> None:
    source = """
@pytest.mark.parametrize("i", range(12))
def test_many(i): pass
@pytest.mark.parametrize("i", range(12))
@pytest.mark.every_variant
def test_all(i): pass
"""
    assert "19 passed, 5 deselected" in run_tests(2, source).check().stdout
    assert "15 passed, 9 deselected" in run_tests(3, source).check().stdout
    slow = run_tests(3, source, "--slow", "-m", "slow").check()
    assert "9 passed, 15 deselected" in slow.stdout


@pytest.mark.slow
def test_markers_select_by_the_number_of_ranks(run_tests: RunTests) -> None:
    source = """
@pytest.mark.ranks(2)
def test_two(): pass
@pytest.mark.ranks(1, 3)
def test_other(): pass
@pytest.mark.job
def test_job(): pass
@pytest.mark.slow
def test_slow(): pass
def test_any(): pass
"""
    assert "2 passed, 3 deselected" in run_tests(2, source).check().stdout
    assert "3 passed, 2 deselected" in run_tests(2, source, "--slow").check().stdout
    assert "3 passed, 2 deselected" in run_tests(1, source).check().stdout


@pytest.mark.slow
def test_exchange_and_shared_folder(run_tests: RunTests) -> None:
    source = """
def test_a(exchange, shared_tmp_path, rank, size):
    assert exchange(rank * rank) == [r * r for r in range(size)]
    (shared_tmp_path / str(rank)).touch()
    exchange("written")
    assert len(list(shared_tmp_path.iterdir())) == size
"""
    run_tests(3, source).check()


@pytest.mark.slow
@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_exchange_with_a_rank_that_failed(run_tests: RunTests, leaver: int) -> None:
    source = f"""
def test_a(exchange):
    assert RANK != {leaver}, "gone early"
    exchange(None)

def test_b(exchange):
    assert exchange(RANK) == [0, 1, 2]
"""
    result = run_tests(3, source)
    result.check(code=1)
    assert "1 failed, 1 passed" in result.stdout
    assert "gone early" in result.stdout
    assert result.stdout.count("a rank left the test") >= 2


@pytest.mark.slow
def test_after_a_failure_ringar_runs_again(run_tests: RunTests) -> None:
    source = """
import numpy as np
import ringar
pytestmark = pytest.mark.usefixtures("initialized")

def total():
    return ringar.allreduce(np.ones(3), op=ringar.Sum).tolist()

def test_before(): assert total() == [3.0] * 3

def test_left(rank):
    assert rank != 1, "only one is wrong"
    total()

def test_between(): assert total() == [3.0] * 3

def test_all_fail(rank):
    ringar.allreduce(np.ones(3 + rank), op=ringar.Sum)

def test_after(): assert total() == [3.0] * 3
"""
    result = run_tests(3, source, "--slow")
    result.check(code=1)
    assert "2 failed, 3 passed" in result.stdout
    assert "FAILED test_it.py::test_left - rank 1 | AssertionError: only one is" in result.stdout
    assert "PeerLostError: rank 0 |" in result.stdout
    assert result.seconds < 45, "the others waited for their deadline"
