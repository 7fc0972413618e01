"""Schedulers and their parts, which do not communicate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ringar.research.scheduled import Dynamic, Random, RoundRobin, Scheduler, balance
from ringar.research.scheduled.independent import Independent

pytestmark = [pytest.mark.ranks(1)]


def correlated(variables: int, rows: int = 40, seed: int = 0) -> np.ndarray:
    """Correlations of columns that have a common part, some of them twice."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, variables)) + random.normal(size=(rows, 1))
    x[:, variables // 2] = x[:, 0]
    x /= np.linalg.norm(x, axis=0)
    return np.asarray(x.T @ x)


def take_all(correlations: np.ndarray, rho: float) -> list[int]:
    independent = Independent(correlations, rho)
    return [j for j in range(len(correlations)) if independent.take(j)]


@pytest.mark.parametrize("rho", [0.05, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_no_step_of_independent_variables_can_raise_a_quadratic(rho: float, seed: int) -> None:
    correlations = correlated(30, seed=seed)
    choice = take_all(correlations, rho)
    chosen = correlations[np.ix_(choice, choice)]
    pairs = chosen[~np.eye(len(choice), dtype=bool)]
    assert np.abs(pairs).max(initial=0) <= rho
    assert np.linalg.eigvalsh(chosen).max() < 2
    assert 1 <= len(choice) < 30
    # The greedy choice leaves out nothing that would have fitted.
    for rest in set(range(30)) - set(choice):
        extended = [*(j for j in choice if j < rest), rest]
        wider = correlations[np.ix_(extended, extended)]
        pairs = wider[~np.eye(len(extended), dtype=bool)]
        assert np.abs(pairs).max() > rho or np.linalg.eigvalsh(wider).max() > 2 - 1e-4


def test_pairs_below_rho_may_be_too_many_together() -> None:
    """The threshold of the paper alone would take all: their largest eigenvalue is 7.3."""
    correlations = np.full((22, 22), 0.3) + 0.7 * np.eye(22)
    assert len(take_all(correlations, rho=0.5)) == 4


def test_orthogonal_variables_are_all_taken() -> None:
    assert take_all(np.eye(9), rho=0.0) == list(range(9))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_balance(ranks: int) -> None:
    random = np.random.default_rng(ranks)
    costs = random.pareto(1.5, size=50)
    blocks = balance(costs, ranks)
    np.testing.assert_array_equal(np.sort(np.concatenate(blocks)), np.arange(50))
    loads = [costs[block].sum() for block in blocks]
    best = max(costs.sum() / ranks, costs.max())
    assert max(loads) <= (4 / 3) * best


def test_balance_leaves_no_rank_empty() -> None:
    assert all(len(block) for block in balance(np.array([9.0, 0, 0, 0]), 4))
    assert [len(block) for block in balance(np.array([]), 2)] == [0, 0]


def test_longest_first() -> None:
    blocks = balance(np.array([2, 3, 4, 5, 6]), 2)
    np.testing.assert_array_equal(blocks[0], [0, 1, 4])
    np.testing.assert_array_equal(blocks[1], [2, 3])


@pytest.mark.parametrize(
    ("costs", "ranks", "message"),
    [
        (np.ones((2, 2)), 2, "one dimension"),
        (np.array([1.0, -1.0]), 2, "not negative"),
        (np.array([1.0, np.nan]), 2, "finite"),
        (np.ones(3), 0, "positive"),
    ],
)
def test_costs_that_cannot_be_balanced(costs: Any, ranks: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        balance(costs, ranks)


def rounds_of(scheduler: Scheduler, count: int, rounds: int, **start: Any) -> list[np.ndarray]:
    """Run it on variables that are independent, and of which number 3 changes most."""
    scheduler.start(np.ones(count), start.pop("ranks", 1), **start)
    picked = []
    for _ in range(rounds):
        candidates = scheduler.propose()
        correlations = np.eye(len(candidates)) if scheduler.is_checked else None
        picked.append(np.concatenate(scheduler.pick(candidates, correlations)))
        scheduler.report(picked[-1], 1e-6 + 1.0 * (picked[-1] == 3))
    return picked


def rounds_of_one(scheduler: Scheduler, count: int, rounds: int, changing: list[int]) -> list[int]:
    """Run it on variables that all depend on each other, and some of which change."""
    scheduler.start(np.ones(count), 1)
    picked = []
    for _ in range(rounds):
        candidates = scheduler.propose()
        (block,) = scheduler.pick(candidates, np.ones((len(candidates),) * 2))
        scheduler.report(block, 1.0 * np.isin(block, changing))
        picked += block.tolist()
    return picked


@pytest.mark.parametrize("kind", [Dynamic, RoundRobin])
@pytest.mark.parametrize("rho", [None, 0.5])
def test_every_variable_has_its_turn_first(kind: Any, rho: float | None) -> None:
    picked = rounds_of(kind(4, rho=rho), 20, 5)
    np.testing.assert_array_equal(np.sort(np.concatenate(picked)), np.arange(20))


def test_those_that_wait_equally_long_come_in_their_order() -> None:
    """On any processor: ranks on unlike ones choose alike."""
    scheduler = Dynamic(8, rho=None)
    scheduler.start(np.ones(200), 1)
    last = np.zeros(200)
    for number in range(1, 51):
        candidates = scheduler.propose()
        if number > 25:
            waiting = np.lexsort((np.arange(200), last))
            np.testing.assert_array_equal(candidates, waiting[:8])
        (block,) = scheduler.pick(candidates, None)
        last[block] = number


def test_a_correlation_that_is_rho_is_not_above_it() -> None:
    rounded = np.array([[1.0, 0.3 + 1e-16], [0.3 + 1e-16, 1.0]])
    assert take_all(rounded, rho=0.3) == [0, 1]


def test_round_robin_gives_all_ranks_work() -> None:
    scheduler = RoundRobin(6)
    scheduler.start(np.ones(30), 3, owners=np.repeat(np.arange(3), 10))
    shares = [scheduler.pick(scheduler.propose(), None) for _ in range(5)]
    assert [[len(block) for block in blocks] for blocks in shares] == [[2, 2, 2]] * 5
    picked = np.concatenate([block for blocks in shares for block in blocks])
    np.testing.assert_array_equal(np.sort(picked), np.arange(30))


def test_round_robin_goes_around() -> None:
    picked = rounds_of(RoundRobin(4), 10, 5)
    np.testing.assert_array_equal(np.concatenate(picked), np.arange(20) % 10)


def test_a_variable_that_depends_on_another_waits_for_the_next_round() -> None:
    scheduler = RoundRobin(3, rho=0.5, candidates=4)
    scheduler.start(np.ones(6), 1)
    correlations = np.eye(4)
    correlations[0, 1] = correlations[1, 0] = 0.8
    (block,) = scheduler.pick(scheduler.propose(), correlations)
    np.testing.assert_array_equal(block, [0, 2, 3])
    np.testing.assert_array_equal(scheduler.propose(), [1, 4, 5, 0])


def test_the_longest_steps_are_picked_and_those_under_way_come_last() -> None:
    scheduler = Dynamic(2, rho=0.5, candidates=4)
    scheduler.start(np.ones(4), 1)
    steps, picked = np.array([4.0, 3, 2, 1]), []
    for _ in range(3):
        candidates = scheduler.propose()
        (block,) = scheduler.pick(candidates, np.eye(4), steps[candidates])
        scheduler.report(block, np.full(2, 9.0))
        picked.append(block.tolist())
    assert picked == [[0, 1], [2, 3], [0, 1]]


def test_what_changes_is_picked_often() -> None:
    dynamic = np.concatenate(rounds_of(Dynamic(2, explore=0.2), 50, 400)[25:])
    uniform = np.concatenate(rounds_of(Random(2), 50, 400)[25:])
    # Every second round: it waits while its change is not known.
    assert (dynamic == 3).sum() >= 180
    assert (uniform == 3).sum() < 40
    assert len(np.unique(dynamic)) == 50, "the others are tried now and then"


@pytest.mark.parametrize("changing", [[3, 7], [0, 1, 2, 4, 5, 6]])
def test_no_variable_waits_for_ever(changing: list[int]) -> None:
    picked = rounds_of_one(Dynamic(4), 8, 120, changing)
    for begin in range(len(picked) - 35):  # 8 / 0.3 rounds, and 8 for others that are due
        assert set(picked[begin : begin + 35]) == set(range(8))


@pytest.mark.parametrize("explore", [0.1, 0.3])
def test_what_changes_comes_first_where_one_variable_fits_a_round(explore: float) -> None:
    changing = [3, 17, 29]
    picked = rounds_of_one(Dynamic(8, explore=explore), 40, 1000, changing)[40:]
    share = np.isin(picked, changing).mean()
    assert 0.95 - explore <= share < 1


def test_few_variables_are_picked_in_every_round() -> None:
    assert {len(block) for block in rounds_of(Dynamic(8), 5, 6)} == {5}


def test_variables_that_have_not_changed_are_picked_where_there_are_no_others() -> None:
    scheduler = Dynamic(8)
    scheduler.start(np.ones(5), 2, owners=np.arange(5) // 3)
    for _ in range(4):
        blocks = scheduler.pick(scheduler.propose(), np.eye(5))
        assert [len(block) for block in blocks] == [3, 2]
        scheduler.report(np.concatenate(blocks), np.zeros(5))


@pytest.mark.parametrize("kind", [Dynamic, RoundRobin, Random])
def test_variables_that_never_change_are_left_out(kind: Any) -> None:
    excluded = np.arange(10) % 2 == 0
    picked = rounds_of(kind(3), 10, 20, excluded=excluded)
    assert set(np.concatenate(picked)) == {1, 3, 5, 7, 9}
    with pytest.raises(ValueError, match="all are excluded"):
        kind(3).start(np.ones(4), 1, excluded=np.ones(4, bool))


@pytest.mark.parametrize("kind", [Dynamic, Random])
def test_a_seed_repeats_a_run(kind: Any) -> None:
    first, again, other = (rounds_of(kind(4, seed=seed), 30, 10) for seed in (1, 1, 2))
    np.testing.assert_array_equal(np.concatenate(first), np.concatenate(again))
    assert (np.concatenate(first) != np.concatenate(other)).any()


def test_costs_are_shared_out() -> None:
    scheduler = RoundRobin(5)
    scheduler.start(np.array([2.0, 3, 4, 5, 6]), 2)
    blocks = scheduler.pick(scheduler.propose(), None)
    assert [block.tolist() for block in blocks] == [[0, 1, 4], [2, 3]]


def test_owners_get_equal_shares() -> None:
    scheduler = Dynamic(6, candidates=24)
    owners = np.arange(40) // 30  # rank 0 owns three in four
    scheduler.start(np.ones(40), 2, owners=owners)
    for _ in range(20):
        candidates = scheduler.propose()
        blocks = scheduler.pick(candidates, np.eye(len(candidates)))
        assert all((owners[block] == rank).all() for rank, block in enumerate(blocks))
        assert len(blocks[0]) == 3
        assert len(blocks[1]) <= 3
        scheduler.report(np.concatenate(blocks), np.ones(sum(map(len, blocks))))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"picks": 0}, "`picks` must be a positive whole number"),
        ({"picks": 2.5}, "`picks` must be a positive whole number"),
        ({"rho": -0.1}, "`rho` must be from 0 to 1"),
        ({"rho": 1.5}, "`rho` must be from 0 to 1"),
        ({"rho": None, "candidates": 64}, "`candidates` must be None without `rho`"),
        ({"picks": 8, "candidates": 4}, "`candidates` must be a whole number of at least `picks`"),
        ({"explore": 0.0}, "`explore` must be above 0"),
    ],
)
def test_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dynamic(**arguments).start(np.ones(9), 1)


def test_correlations_of_other_candidates() -> None:
    scheduler = Dynamic(2)
    scheduler.start(np.ones(9), 1)
    with pytest.raises(ValueError, match="must be a matrix of all candidates"):
        scheduler.pick(scheduler.propose(), np.eye(3))
