"""Arguments that cannot be used, on all ranks or on one alone, and process sets misused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.outcomes import KINDS, Outcomes

pytestmark = pytest.mark.job

DTYPES = "float16, bfloat16, float32, float64, int8, uint8, int32, int64"
NOT_A_SCALAR = "expected an array of at least one dimension, received a scalar; reshape it to [1]"

#: What the engine refuses on every rank: scenario, collective, reason.
REFUSED_ON_ALL = [
    ("root too large", "broadcast", "expected a root rank from 0 to 2, received 3"),
    ("root below 0", "broadcast", "expected a root rank from 0 to 2, received -1"),
    ("sum of bool", "allreduce", f"expected a dtype that can be reduced ({DTYPES}), received bool"),
    ("sum of complex", "allreduce", f"({DTYPES}), received complex64; cast it first"),
    ("scaled integers", "allreduce", "received int32, where the result would be cut off"),
    ("integer average", "allreduce", "received int32, where the result would be cut off"),
    ("integer average of shares", "reducescatter", "received int64, where"),
    ("scalar to allgather", "allgather", NOT_A_SCALAR),
    ("scalar to alltoall", "alltoall", NOT_A_SCALAR),
    ("scalar to reducescatter", "reducescatter", NOT_A_SCALAR),
]
#: What only rank 1 asked for.
REFUSED_ON_ONE = [
    ("root too large on rank 1", "broadcast", "expected a root rank from 0 to 2, received 99"),
    ("scalar on rank 1", "allgather", NOT_A_SCALAR),
    ("integer average on rank 1", "allreduce", "received int32, where the result would be cut off"),
    (
        "splits that do not add up",
        "alltoall",
        "expected splits that add up to the first dimension (6), received [2, 2, 3], "
        "which add up to 7",
    ),
    ("splits below 0", "alltoall", "expected splits of 0 or more, received [4, -1, 3]"),
    ("too few splits", "alltoall", "one split per rank of the process set (3), received 2: [3, 3]"),
    ("too many splits", "alltoall", "process set (3), received 4: [2, 2, 2, 0]"),
]
#: What Python finds on every rank by itself: scenario, class, collective, message.
REFUSED_EARLY = [
    ("strings", "UnsupportedError", "allgather", ["expected a dtype", "Cast it first"]),
    ("op is a string", "ValueError", "allreduce", ["an op out of ringar.Sum", "received 'sum'."]),
]


def modes_of(scenario: str) -> list[str]:
    """Compiled code takes no splits, and refuses an alltoall of a scalar on its own."""
    in_compiled = "splits" not in scenario and scenario != "scalar to alltoall"
    return list(KINDS) if in_compiled else list(KINDS)[:-1]


def test_the_job_ends_well(outcomes: Outcomes) -> None:
    outcomes.job.check()


def refusals(outcomes: Outcomes, scenario: str, collective: str, reason: str) -> Iterator[str]:
    """Yield the messages of all ranks, in all modes; the collective after each must succeed."""
    for mode in modes_of(scenario):
        for outcome in outcomes.of(f"{scenario}, {mode}"):
            outcome.expect(KINDS[mode], f"rank {outcome.rank} | {collective} ", reason)
            yield outcome.message
        outcomes.expect_success(f"after {scenario}, {mode}")


@pytest.mark.parametrize(("scenario", "collective", "reason"), REFUSED_ON_ALL)
def test_refused_on_all_ranks(
    outcomes: Outcomes, scenario: str, collective: str, reason: str
) -> None:
    for message in refusals(outcomes, scenario, collective, reason):
        assert message.count("refused: ") == 1, message
        assert f"\n  ranks 0-2: {collective} " in message


@pytest.mark.parametrize(("scenario", "collective", "reason"), REFUSED_ON_ONE)
def test_refused_on_one_rank_and_told_to_all(
    outcomes: Outcomes, scenario: str, collective: str, reason: str
) -> None:
    for message in refusals(outcomes, scenario, collective, reason):
        (line,) = (x for x in message.splitlines() if "refused: " in x)
        assert line.startswith(f"  rank 1: {collective} "), message


@pytest.mark.parametrize(("scenario", "kind", "collective", "texts"), REFUSED_EARLY)
def test_refused_before_any_rank_is_asked(
    outcomes: Outcomes, scenario: str, kind: str, collective: str, texts: list[str]
) -> None:
    for mode in KINDS:
        for outcome in outcomes.of(f"{scenario}, {mode}"):
            outcome.expect(kind, f'rank {outcome.rank} | {collective} "t": expected ', *texts)
        outcomes.expect_success(f"after {scenario}, {mode}")


@pytest.mark.parametrize("scenario", ["splits", "scalar to alltoall"])
def test_compiled_alltoall_takes_only_even_rows(outcomes: Outcomes, scenario: str) -> None:
    for outcome in outcomes.of(f"{scenario}, compiled"):
        outcome.expect("UnsupportedError", "alltoall in a compiled function", "Leave it out")
    outcomes.expect_success(f"after {scenario}, compiled")


def test_objects_and_variables(outcomes: Outcomes) -> None:
    for outcome in outcomes.of("object from nowhere"):
        outcome.expect(
            "MismatchError", 'broadcast "broadcast_object"', "expected a root rank from 0 to 2"
        )
    outcomes.expect_success("after object from nowhere")
    for outcome in outcomes.of("variables that differ"):
        outcome.expect(
            "InvalidArgumentError",
            'ranks 0, 2 (2 of 3): broadcast "broadcast_variables" of float32[4]',
            'rank 1: broadcast "broadcast_variables" of float32[3]',
        )
    outcomes.expect_success("after variables that differ")


# Process sets


@pytest.mark.parametrize(
    ("scenario", "received"),
    [
        ("rank beyond the job", [0, 3]),
        ("rank below 0", [-1, 0]),
        ("rank twice", [1, 1]),
        ("no ranks", []),
    ],
)
def test_ranks_that_make_no_set(outcomes: Outcomes, scenario: str, received: list[int]) -> None:
    for outcome in outcomes.of(scenario):
        outcome.expect("ValueError", "different ranks from 0 to 2", f"Received: {received}")


def test_ranks_that_add_different_sets(outcomes: Outcomes) -> None:
    for outcome in outcomes.of("different sets"):
        outcome.expect(
            "MismatchError",
            'ranks 0, 2 (2 of 3): add_process_set "[0, 2]"',
            'rank 1: add_process_set "[0, 1]"',
        )
    outcomes.expect_success("after different sets")


def test_ranks_that_remove_different_sets(outcomes: Outcomes) -> None:
    for outcome in outcomes.of("different sets removed"):
        outcome.expect(
            "MismatchError",
            'ranks 0, 2 (2 of 3): remove_process_set "2"',
            'rank 1: remove_process_set "1"',
        )
    outcomes.expect_success("after different sets removed")


@pytest.mark.parametrize(
    ("scenario", "text"),
    [
        ("never added", "expected a process set that is in use; received ProcessSet("),
        ("removed without being added", "process_set must have been added"),
        ("all ranks removed", "must not be the global one"),
        ("added twice", "process_set must not have been added before"),
        ("root outside the set", "out of the process set's ranks [0, 2]; received 1. "),
        ("removed, numpy", "expected a process set that is in use; received ProcessSet("),
    ],
)
def test_sets_that_cannot_be_used(outcomes: Outcomes, scenario: str, text: str) -> None:
    for outcome in outcomes.of(scenario):
        outcome.expect("ValueError", text)


@pytest.mark.parametrize("mode", KINDS)
def test_a_set_used_by_a_rank_outside_it(outcomes: Outcomes, mode: str) -> None:
    (outsider,) = outcomes.of(f"collective of a set, {mode}", [1])
    outsider.expect(
        KINDS[mode],
        "rank 1 | ",
        "expected a member of process set 1 (ranks [0, 2]), received rank 1",
        "Call its collectives only where process_set.included() is true",
    )
    outcomes.expect_success(f"collective of a set, {mode}", [0, 2])
    outcomes.expect_success(f"after collective of a set, {mode}")


@pytest.mark.parametrize(("mode", "ranks"), [("function", [0, 1, 2]), ("compiled", [0, 2])])
def test_a_function_that_outlives_its_set(outcomes: Outcomes, mode: str, ranks: list[int]) -> None:
    for outcome in outcomes.of(f"removed, {mode}", ranks):
        outcome.expect(
            KINDS[mode],
            f"rank {outcome.rank} | ",
            "process set 1, which was never added or is removed",
        )
    outcomes.expect_success("after removed")
