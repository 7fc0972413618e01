"""A user's problem: its rounds, and its errors, raised on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ringar
from ringar.errors import MismatchError, RankError
from ringar.parallel import scheduled
from ringar.research.scheduled import Progress

pytestmark = [pytest.mark.usefixtures("initialized")]

VARIABLES = 12
TARGET = np.arange(VARIABLES) / 4 - 1
Schedule = Callable[[int], Sequence[Any]]


def split(number: int) -> list[np.ndarray]:
    return np.array_split(np.roll(np.arange(VARIABLES), number)[:8], ringar.size())


class Halve(scheduled.Problem):
    """Halves the distance to a target in each coordinate that is scheduled."""

    variables = VARIABLES

    def __init__(self, schedule: Schedule = split) -> None:
        self.at, self.blocks_of, self.surveys = np.zeros(VARIABLES), schedule, 0

    def survey(self, number: int) -> np.ndarray | None:
        self.surveys += 1
        return np.array([float(number), 1.0])

    def schedule(self, number: int, surveyed: np.ndarray | None) -> Sequence[Any]:
        assert surveyed is not None
        # The sum of the surveys that were made for this round.
        np.testing.assert_array_equal(surveyed, np.array([number, 1.0]) * ringar.size())
        return self.blocks_of(number)

    def push(self, blocks: Sequence[np.ndarray]) -> np.ndarray:
        block = blocks[ringar.rank()]
        changes = np.zeros(VARIABLES)
        changes[block] = (TARGET - self.at)[block] / 2
        return changes

    def pull(self, blocks: Sequence[np.ndarray], pushed: np.ndarray) -> None:
        self.at = self.at + pushed

    def objective(self) -> float:
        return float(np.square(self.at - TARGET).sum())


class Another(Halve):
    pass


def expected(rounds: int) -> np.ndarray:
    at = np.zeros(VARIABLES)
    for number in range(rounds):
        block = np.concatenate(split(number))
        at[block] += (TARGET - at)[block] / 2
    return at


def test_rounds() -> None:
    problem = Halve()
    history = scheduled.run(problem, 7, every=3)
    np.testing.assert_allclose(problem.at, expected(7), rtol=1e-14)
    assert history.rounds == [0, 3, 6, 7]
    objectives = [np.square(expected(done) - TARGET).sum() for done in history.rounds]
    np.testing.assert_allclose(history.objectives, objectives)
    assert not history.converged
    assert problem.surveys == 8, "one for each round, and one that no round has used"


def test_no_rounds() -> None:
    problem = Halve()
    assert scheduled.run(problem, 0).rounds == [0]
    assert not problem.at.any()


def test_the_relative_change_ends_a_run() -> None:
    history = scheduled.run(Halve(lambda number: split(0)), 50, tolerance=1e-3)
    before, now = history.objectives[-2:]
    assert history.converged
    assert history.gap == pytest.approx((before - now) / now)
    assert history.gap <= 1e-3
    assert len(history.rounds) < 30


def test_callbacks_of_one_rank_end_the_run_on_all(rank: int, size: int) -> None:
    reports: list[Progress] = []

    def stop(progress: Progress) -> bool:
        reports.append(progress)
        return rank == size - 1 and progress.round == 4

    history = scheduled.run(Halve(), 20, every=2, callbacks=[stop, lambda progress: None])
    assert [report.round for report in reports] == history.rounds == [0, 2, 4]
    assert [report.objective for report in reports] == history.objectives


@pytest.mark.ranks(2, 3, 4)
def test_callbacks_on_one_rank_only(rank: int) -> None:
    callbacks = [lambda progress: progress.round == 3] if rank == 1 else []
    assert scheduled.run(Halve(), 20, callbacks=callbacks).rounds == [0, 1, 2, 3]


def test_without_a_survey() -> None:
    class Plain(Halve):
        def survey(self, number: int) -> None:
            return None

        def schedule(self, number: int, surveyed: np.ndarray | None) -> Sequence[Any]:
            assert surveyed is None
            return split(number)

    problem = Plain()
    scheduled.run(problem, 3)
    np.testing.assert_allclose(problem.at, expected(3))


def empty(block: Any = (), count: int | None = None) -> list[np.ndarray]:
    blocks = [np.empty(0, np.int64) for _ in range(count or ringar.size())]
    blocks[-1] = np.asarray(block)
    return blocks


def test_blocks_may_be_empty() -> None:
    problem = Halve(lambda number: empty([2]))
    scheduled.run(problem, 1)
    assert np.flatnonzero(problem.at - 0.5 * TARGET * (np.arange(VARIABLES) == 2)).size == 0


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (lambda n: empty(count=ringar.size() + 1), r"one block for each of the \d ranks.*round 0"),
        (lambda n: [], r"one block for each of the \d ranks.*0 blocks"),
        (lambda n: empty([0, VARIABLES]), r"from 0 to 11\. Received: 0 to 12 in round 0"),
        (lambda n: empty([-1, 3]), r"from 0 to 11\. Received: -1 to 3"),
        (lambda n: empty([0.5]), r"whole numbers\. Received: float64"),
        (lambda n: empty([[1, 2]]), r"one dimension\. Received: a block of shape \(1, 2\)"),
        (lambda n: empty([3, 4, 3]), r"without a common variable\. Received: variable 3"),
        (lambda n: split(n) if n < 3 else empty([5, 5]), r"variable 5 in .* in round 3"),
    ],
)
def test_schedules_that_do_not_fit(blocks: Schedule, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scheduled.run(Halve(blocks), 5)


@pytest.mark.ranks(2, 3, 4)
def test_blocks_that_overlap(size: int) -> None:
    overlapping = [np.array([rank, (rank + 1) % size]) for rank in range(size)]
    with pytest.raises(ValueError, match=r"variable 0 in the blocks of ranks \[0, \d\] in round 0"):
        scheduled.run(Halve(lambda number: overlapping), 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rounds": -1}, "`rounds` must be a whole number of at least 0"),
        ({"rounds": 2.0}, "`rounds` must be a whole number"),
        ({"rounds": 2, "every": 0}, "`every` must be a whole number of at least 1"),
        ({"rounds": 2, "tolerance": -1.0}, "`tolerance` must be None or not negative"),
        ({"rounds": 2, "tolerance": float("nan")}, "`tolerance` must be None or not negative"),
    ],
)
def test_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scheduled.run(Halve(), **arguments)


def test_a_problem_without_variables() -> None:
    problem = Halve()
    problem.variables = 0
    with pytest.raises(ValueError, match=r"Halve\.variables must be the number of variables"):
        scheduled.run(problem, 3)


@pytest.mark.parametrize(("method", "returned"), [("push", None), ("survey", [1.0, 2.0])])
def test_no_array(method: str, returned: Any) -> None:
    problem = Halve()
    setattr(problem, method, lambda *arguments: returned)
    kind = type(returned).__name__
    with pytest.raises(
        ValueError, match=rf"`{method}` must return a NumPy array\. Received: {kind}"
    ):
        scheduled.run(problem, 3)


def test_an_objective_that_is_not_finite() -> None:
    problem = Halve()
    problem.pull = lambda blocks, pushed: problem.at.fill(np.inf)  # type: ignore[method-assign]
    with pytest.raises(FloatingPointError, match=r"is inf after 1 rounds"):
        scheduled.run(problem, 3)


# --- Ranks that disagree: one error on all, and the job goes on.


@pytest.mark.ranks(2, 3, 4)
def test_other_classes(rank: int) -> None:
    with pytest.raises(ValueError, match=r"the same problem on every rank.*Another \(rank 1\)"):
        scheduled.run(Another() if rank == 1 else Halve(), 5)
    scheduled.run(Halve(), 1)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("rounds", (5, 6), r"the same `rounds` on every rank; received 5 \(.*\), 6 \(rank 1\)"),
        ("every", (1, 2), r"the same `every` on every rank"),
        ("tolerance", (None, 0.1), r"the same `tolerance` on every rank"),
    ],
)
def test_other_arguments(rank: int, name: str, values: Any, message: str) -> None:
    arguments = {"rounds": 5, name: values[rank == 1]}
    with pytest.raises(ValueError, match=message):
        scheduled.run(Halve(), **arguments)


@pytest.mark.ranks(2, 3, 4)
def test_wrong_arguments_on_one_rank(rank: int) -> None:
    with pytest.raises(ValueError, match=r"`rounds` must be a whole number"):
        scheduled.run(Halve(), -1 if rank == 1 else 5)


@pytest.mark.ranks(2, 3, 4)
def test_other_schedules(rank: int) -> None:
    problem = Halve(lambda number: split(number + (number == 2 and rank == 1)))
    with pytest.raises(ValueError, match=r"the same schedule of round 2.*\(rank 1\).*same seed"):
        scheduled.run(problem, 5)
    np.testing.assert_allclose(problem.at, expected(2), err_msg="the wrong round changes nothing")


class Broken(Exception):
    pass


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("method", ["survey", "schedule", "push", "pull", "describe"])
def test_an_exception_on_one_rank(rank: int, method: str) -> None:
    problem = Halve()

    def fail(*arguments: Any) -> Any:
        raise Broken("no more memory")

    if rank == 1:
        setattr(problem, method, fail)
    ends_on_all(problem, rank)


def ends_on_all(problem: scheduled.Problem, rank: int) -> None:
    """Run a problem that is broken on rank 1."""
    kind = Broken if rank == 1 else RankError
    with pytest.raises(kind, match="no more memory") as caught:
        scheduled.run(problem, 4, every=2, tolerance=0.0)
    if rank != 1:
        assert f"rank {rank} | scheduled.run" in str(caught.value)
        assert "expected rank 1 to succeed; received its error Broken" in str(caught.value)
    scheduled.run(Halve(), 1)


class Together(Halve):
    """Uses collectives wherever a problem may."""

    fails = ("", 0, False)  # the method, which call of it, and whether before its collective

    def _together(self, method: str) -> None:
        name, count, early = self.fails
        self.calls = {**getattr(self, "calls", {})}
        self.calls[method] = self.calls.get(method, 0) + 1
        for is_early in (True, False):
            if (name, count, early) == (method, self.calls[method], is_early):
                raise Broken("no more memory")
            if is_early:
                ringar.allreduce(np.ones(3), ringar.Sum)

    def exchange(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        self._together("exchange")
        return super().exchange(arrays)

    def objective(self) -> float:
        self._together("objective")
        return super().objective()

    def gap(self, objectives: Sequence[float]) -> float:
        self._together("gap")
        return super().gap(objectives)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("method", ["exchange", "objective", "gap"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("early", [True, False])
def test_an_exception_on_one_rank_in_a_step_of_all(
    rank: int, method: str, count: int, early: bool
) -> None:
    problem = Together()
    if rank == 1:
        problem.fails = (method, count, early)
    ends_on_all(problem, rank)


@pytest.mark.ranks(2, 3, 4)
def test_a_collective_that_one_rank_leaves_out(rank: int) -> None:
    problem = Halve()
    if rank == 1:
        problem.objective = lambda: 1.0  # type: ignore[method-assign]
    else:
        problem.objective = lambda: float(  # type: ignore[method-assign]
            ringar.allreduce(np.float64(1), ringar.Sum)
        )
    with pytest.raises(MismatchError, match="expected the same collective"):
        scheduled.run(problem, 3)
    scheduled.run(Halve(), 1)


@pytest.mark.ranks(2, 3, 4)
def test_what_ranks_push_differs(rank: int) -> None:
    problem = Halve()
    problem.push = lambda blocks: np.zeros(VARIABLES + rank)  # type: ignore[method-assign]
    with pytest.raises(MismatchError, match="expected the same collective"):
        scheduled.run(problem, 3)
    scheduled.run(Halve(), 1)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("at", [0, 2])
def test_a_survey_of_some_ranks(rank: int, at: int) -> None:
    problem = Halve()
    survey = problem.survey
    problem.survey = (  # type: ignore[method-assign]
        lambda number: None if (rank, number) == (1, at) else survey(number)
    )
    message = r"the same `survey`.*None \(rank 1\)" if at == 0 else "the same collective"
    with pytest.raises(ValueError, match=message):
        scheduled.run(problem, 4)
    scheduled.run(Halve(), 1)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("method", ["objective", "gap"])
def test_other_numbers(rank: int, method: str) -> None:
    """Ranks would not agree on the end, and wait for those that go on."""
    problem = Halve()
    setattr(problem, method, lambda *arguments: float(rank))
    with pytest.raises(ValueError, match=rf"the same `{method}` on every rank.*1\.0 \(rank 1\)"):
        scheduled.run(problem, 3, tolerance=0.5)


def test_an_exchange_that_returns_too_little() -> None:
    problem = Halve()
    problem.exchange = lambda arrays: arrays[:-1]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"as many arrays as it gets, 1\. Received: 0"):
        scheduled.run(problem, 3)


@pytest.mark.ranks(2, 3, 4)
def test_a_value_error_on_one_rank_is_one_on_all(rank: int) -> None:
    problem = Halve(lambda number: empty([99]) if rank == 1 else split(number))
    with pytest.raises(ValueError, match=r"from 0 to 11\. Received: 99 to 99"):
        scheduled.run(problem, 4)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("together", [False, True])
def test_a_callback_that_fails_on_one_rank(rank: int, together: bool) -> None:
    def fail(progress: Progress) -> None:
        if rank == 1 and progress.round == 2:
            raise Broken("disk full")
        if together:
            ringar.allreduce(np.ones(3), ringar.Sum)

    with pytest.raises(Broken if rank == 1 else RankError, match="disk full"):
        scheduled.run(Halve(), 4, callbacks=[fail])
    scheduled.run(Halve(), 1)


@pytest.mark.ranks(3, 4)
def test_some_ranks(rank: int) -> None:
    pair = ringar.add_process_set([0, 2])
    try:
        if pair.included():
            problem = Halve(lambda number: np.array_split(np.arange(VARIABLES), 2))
            problem.process_set = pair
            problem.survey = lambda number: None  # type: ignore[method-assign]
            problem.schedule = (  # type: ignore[method-assign]
                lambda number, surveyed: problem.blocks_of(number)
            )
            problem.push = (  # type: ignore[method-assign]
                lambda blocks: (TARGET - problem.at) / 2 * np.isin(
                    np.arange(VARIABLES), blocks[pair.rank()]
                )
            )  # fmt: skip
            scheduled.run(problem, 1)
            np.testing.assert_allclose(problem.at, TARGET / 2)
    finally:
        ringar.remove_process_set(pair)
