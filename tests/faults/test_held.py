"""A collective that waits for another one neither blocks what that one needs, nor hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.outcomes import Outcomes, run_scenarios
from tests.plugin import run_job

pytestmark = [pytest.mark.job, pytest.mark.deadline(120)]

SCRIPT = Path(__file__).parent / "scripts" / "held.py"
CALL = Path(__file__).parent / "scripts" / "held_call.py"


def run(folder: Path, threads: int) -> Outcomes:
    return run_scenarios(2, SCRIPT, folder, args=[str(threads)])


def test_a_short_one_behind_a_long_one_holds_no_thread(tmp_path: Path) -> None:
    outcomes = run(tmp_path, threads=1)
    for scenario in ("in order", "works after it"):
        outcomes.expect_success(scenario)


@pytest.mark.slow
def test_a_step_that_fails_ends_although_a_collective_of_it_is_held(tmp_path: Path) -> None:
    outcomes = run(tmp_path, threads=2)
    outcomes.expect_success("in order")
    for outcome in outcomes.of("failed before"):
        outcome.expect("OpError", within=15)
    message = 'allreduce "second": expected the inputs of an earlier collective'
    assert message in outcomes.job.stderr, outcomes.job
    outcomes.expect_success("works after it")


def test_a_python_function_that_waits_leaves_a_thread_on_one_core() -> None:
    assert run_job(None, CALL, args=["0"], deadline=60).check().stdout.split() == ["right"]


@pytest.mark.slow
def test_a_python_function_that_waits_in_the_only_thread_says_what_to_do() -> None:
    job = run_job(None, CALL, args=["1"], deadline=60).check()
    for text in (job.stdout, job.stderr):
        assert 'allreduce "inner": expected the inputs of an earlier collective' in text, job
        assert "raise ringar.init(inter_op_threads=...)" in text, job
