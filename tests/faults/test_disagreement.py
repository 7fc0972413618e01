"""Ranks that disagree: each gets an exception that says what each asked for, and can go on."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.faults.outcomes import KINDS, Outcomes

pytestmark = pytest.mark.job

#: Scenario: what ranks 0 and 2 asked for, and what rank 1 did. "?4" is a number of rows in which
#: ranks may differ, and is 4 in compiled code, where they may not.
ASKED = {
    "collective": (
        'allreduce "t" of float32[4], op=sum',
        'allgather "t" of float32[?4]',
    ),
    "shape": (
        'allreduce "t" of float32[4], op=sum',
        'allreduce "t" of float32[5], op=sum',
    ),
    "dimensions": (
        'allgather "t" of float32[?2,4]',
        'allgather "t" of float32[?2,3]',
    ),
    "dtype": (
        'allreduce "t" of float32[4], op=sum',
        'allreduce "t" of float64[4], op=sum',
    ),
    "op": (
        'allreduce "t" of float32[4], op=sum',
        'allreduce "t" of float32[4], op=max',
    ),
    "scale": (
        'allreduce "t" of float32[4], op=sum',
        'allreduce "t" of float32[4], op=sum, prescale=0.5',
    ),
    "name": (
        'allreduce "ours" of float32[4], op=sum',
        'allreduce "mine" of float32[4], op=sum',
    ),
    "count": (
        'allreduce "t" of float32[4] and 1 more, op=sum',
        'allreduce "t" of float32[4] and 2 more, op=sum',
    ),
    "root": (
        'broadcast "t" of float32[4], root=0',
        'broadcast "t" of float32[4], root=1',
    ),
    "movement": (
        'alltoall "t" of float32[?6]',
        'broadcast "t" of float32[6], root=2',
    ),
    "large": (
        'allreduce "t" of float32[300000], op=sum',
        'allreduce "t" of float32[300001], op=sum',
    ),
}


def test_the_job_ends_well(outcomes: Outcomes) -> None:
    outcomes.job.check()


def requests(scenario: str, mode: str) -> list[str]:
    """What messages say that the ranks asked for, in rank order."""
    common, odd = (
        re.sub(r"\?(\d)", r"\1" if mode == "compiled" else "?", text) for text in ASKED[scenario]
    )
    return [common, odd, common]


def lines(texts: list[str]) -> str:
    """The lines of the message: the majority, ranks 0 and 2, before the other one."""
    return f"\n  ranks 0, 2 (2 of 3): {texts[0]}\n  rank 1: {texts[1]}\n"


def without_notes(text: str) -> str:
    """The message without what it says on compiled collectives in general."""
    return re.sub(r" \(compiled: [^)]*\)", "", text)


@pytest.mark.parametrize("mode", KINDS)
@pytest.mark.parametrize("scenario", ASKED)
def test_all_ranks_are_told_what_each_asked_for(
    outcomes: Outcomes, scenario: str, mode: str
) -> None:
    texts = requests(scenario, mode)
    for outcome in outcomes.of(f"{scenario}, {mode}"):
        replace(outcome, message=without_notes(outcome.message)).expect(
            KINDS[mode],
            f"rank {outcome.rank} | {texts[outcome.rank]}: expected the same collective, shapes, "
            "dtype, op and name on every rank, received",
            lines(texts),
            "look for a branch, a loop or a shape that depends on the rank",
        )


@pytest.mark.parametrize("mode", KINDS)
@pytest.mark.parametrize("scenario", ASKED)
def test_the_job_can_go_on(outcomes: Outcomes, scenario: str, mode: str) -> None:
    outcomes.expect_success(f"after {scenario}, {mode}")


def test_rows_that_differ_in_compiled_code(outcomes: Outcomes) -> None:
    for outcome in outcomes.of("rows, compiled"):
        outcome.expect("InternalError", 'allgather "t" of float32', "jit_compile")
    outcomes.expect_success("after rows, compiled")
