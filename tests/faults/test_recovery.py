"""Faults that the ranks outlive: the others are told who and what, and can begin again."""

from __future__ import annotations

import re

import pytest

from tests.faults.outcomes import Outcomes

pytestmark = pytest.mark.job

OTHERS = [0, 2]
#: Loop: the classes of a lost peer, and of a deadline.
LOOPS = {
    "numpy": ("PeerLostError", "DeadlineError"),
    "eager": ("AbortedError", "DeadlineExceededError"),
    "function": ("AbortedError", "DeadlineExceededError"),
    "compiled": ("InternalError", "InternalError"),
    "fit": ("AbortedError", "DeadlineExceededError"),
    "compiled fit": ("InternalError", "InternalError"),
}
LEFT = "rank 1 has left: it called ringar.shutdown() or its program ended"


def test_the_job_ends_well(outcomes: Outcomes) -> None:
    outcomes.job.check()


def test_a_rank_that_does_not_call_init(outcomes: Outcomes) -> None:
    for outcome in outcomes.of("never came", OTHERS):
        outcome.expect(
            "DeadlineError",
            f"rank {outcome.rank} | expected all 3 ranks in ringar.init(), but after 1.5 s",
            "still waiting for rank",
            "Does every rank call ringar.init()?",
        )
    for outcome in outcomes.of("rank after that", OTHERS):
        outcome.expect("NotInitializedError", "call ringar.init()")
    (too_late,) = outcomes.of("too late", [1])
    too_late.expect(
        "DeadlineError",
        "rank 1 | expected all 3 ranks in ringar.init(), but after 1.5 s still waiting for "
        "rank 0, 2",
    )
    outcomes.expect_success("after never came")


def test_a_late_rank_is_named_and_waited_for(outcomes: Outcomes) -> None:
    outcomes.expect_success("late")
    outcomes.expect_success("after late")
    for rank in OTHERS:
        pattern = (
            rf'\[{rank}\] rank {rank} \| allreduce "slow" of float32\[5\], op=sum, [^:]*: '
            r"has waited 0\.\d+ s for rank 1 "
            r'\(last seen in allreduce "early" of float32\[3\]'
        )
        assert re.search(pattern, outcomes.job.stderr), outcomes.job
    assert '[1] rank 1 | allreduce "slow"' not in outcomes.job.stderr


def test_an_exception_inside_a_function_on_all_ranks(outcomes: Outcomes) -> None:
    for outcome in outcomes.of("assertion on all"):
        outcome.expect("InvalidArgumentError", "too much")
    outcomes.expect_success("after assertion on all")


def test_an_exception_inside_a_function_on_one_rank(outcomes: Outcomes) -> None:
    (failed,) = outcomes.of("assertion on one", [1])
    failed.expect("InvalidArgumentError", "too much")
    for outcome in outcomes.of("assertion on one", OTHERS):
        outcome.expect("AbortedError", f"rank {outcome.rank} | ", '"second"', LEFT)
    outcomes.expect_success("after assertion on one")


def test_starting_again_and_again(outcomes: Outcomes) -> None:
    for i in range(5):
        outcomes.expect_success(f"restart {i}")
        outcomes.expect_success(f"after restart {i}")


def test_the_rank_at_fault_is_still_named_when_others_have_left_because_of_it(
    outcomes: Outcomes,
) -> None:
    (first,) = outcomes.of("first to know", [0])
    first.expect("PeerLostError", "rank 0 | ", LEFT)
    (last,) = outcomes.of("last to know", [2])
    last.expect("PeerLostError", "rank 2 | ", LEFT)
    outcomes.expect_success("after chain")


@pytest.mark.parametrize("scenario", ["fork_and_join", "fork_and_kill", "run_program"])
def test_children_do_not_disturb_the_job(outcomes: Outcomes, scenario: str) -> None:
    outcomes.expect_success(scenario, [1, 2])
    outcomes.expect_success(f"after {scenario}")


@pytest.mark.parametrize("loop", LOOPS)
def test_a_rank_that_shuts_down_while_others_go_on(outcomes: Outcomes, loop: str) -> None:
    loss, _ = LOOPS[loop]
    for outcome in outcomes.of(f"left, {loop}", OTHERS):
        outcome.expect(loss, f"rank {outcome.rank} | allreduce ", LEFT)
    for outcome in outcomes.of(f"left, {loop}, again", OTHERS):
        outcome.expect("PeerLostError", LEFT)
    outcomes.expect_success(f"after left, {loop}")


@pytest.mark.parametrize("loop", LOOPS)
def test_a_stopped_rank_misses_the_deadline(outcomes: Outcomes, loop: str) -> None:
    loss, deadline = LOOPS[loop]
    survivors = outcomes.of(f"stopped, {loop}", OTHERS)
    # Of the two that wait, one may see first that the other has given up, and why.
    assert any(deadline in outcome.kinds for outcome in survivors)
    for outcome in survivors:
        outcome.expect(
            deadline if deadline in outcome.kinds else loss,
            f"rank {outcome.rank} | allreduce ",
            "expected every rank within the deadline of 1.5 s, still waiting for rank 1 (",
            "raise the deadline",
        )
        assert outcome.seconds > 1.5
    (victim,) = outcomes.of(f"stopped, {loop}", [1])
    victim.expect(loss, "rank 1 | allreduce ", "has given up: rank ", "still waiting for rank 1")
    outcomes.expect_success(f"after stopped, {loop}")
