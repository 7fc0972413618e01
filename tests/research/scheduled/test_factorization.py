"""The factorization against one process, its blocks, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ringar
from ringar.errors import RankError
from ringar.research.scheduled import MatrixFactorization, balance, strata
from ringar.research.scheduled.strata import Factorization, Ratings, Settings
from ringar.research.scheduled.waves import arrange
from tests.comparison import assert_same_everywhere

pytestmark = [pytest.mark.usefixtures("initialized")]

SHAPE = (23, 14)
OPTIONS: dict[str, Any] = {"factors": 3, "learning_rate": 0.05, "decay": 0.1, "epochs": 3}


def elements(share: float = 0.6, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Known elements of a matrix of rank 3; some rows have many, and two have none."""
    random = np.random.default_rng(5)
    matrix = random.normal(size=(SHAPE[0], 3)) @ random.normal(size=(3, SHAPE[1]))
    mask = random.random(SHAPE) < share * np.linspace(0.3, 1.7, SHAPE[0])[:, np.newaxis]
    mask[[4, 9]] = False
    rows, columns = np.nonzero(mask)
    return rows, columns, matrix[mask] + noise * random.normal(size=len(rows))


def share_of(rank: int, size: int, seed: int = 0) -> np.ndarray:
    """The places of a rank's elements, at random."""
    total = len(elements()[0])
    return np.flatnonzero(np.random.default_rng(seed).integers(0, size, total) == rank)


def part(places: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Some of the elements."""
    rows, columns, values = elements()
    return rows[places], columns[places], values[places]


def fit(who: int = 0, **options: Any) -> MatrixFactorization:
    rows, columns, values = part(share_of(ringar.rank(), ringar.size(), who))
    return MatrixFactorization(**{**OPTIONS, **options}).fit(rows, columns, values, SHAPE)


def by_one_process(ranks: int) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Plain loops over elements, in the order that so many ranks make."""
    rows, columns, values = elements()
    order = np.lexsort((values, columns, rows))
    rows, columns, values = rows[order], columns[order], values[order] - values.mean()
    counts = [np.bincount(rows, minlength=SHAPE[0]), np.bincount(columns, minlength=SHAPE[1])]
    blocks = [balance(count, ranks) for count in counts]
    factors = [np.empty((count, OPTIONS["factors"])) for count in SHAPE]
    for axis, matrix in enumerate(factors):
        for number, members in enumerate(blocks[axis]):
            random = np.random.default_rng([0, axis, number])
            matrix[members] = random.normal(scale=3**-0.5, size=(len(members), 3))
    generators = [np.random.default_rng([0, 2, rank]) for rank in range(ranks)]
    orders: dict[tuple[int, int], np.ndarray] = {}
    for rank in range(ranks):
        candidates = np.flatnonzero(np.isin(rows, blocks[0][rank]))
        for block in range(ranks):
            places = generators[rank].permutation(
                np.flatnonzero(np.isin(columns[candidates], blocks[1][block]))
            )
            chosen = candidates[places]
            waves = arrange(rows[chosen], columns[chosen], np.arange(len(chosen)))
            orders[rank, block] = chosen[waves.values]
    w, h = factors
    penalty = 0.02

    def objective() -> float:
        total = 0.0
        for i, j, v in zip(rows, columns, values, strict=True):
            total += (v - w[i] @ h[j]) ** 2 + penalty * (w[i] @ w[i] + h[j] @ h[j])
        return total / 2

    objectives = [objective()]
    for epoch in range(OPTIONS["epochs"]):
        rate = 0.05 / (1 + 0.1 * epoch)
        for turn in range(ranks):
            for rank in range(ranks):
                for place in orders[rank, (rank + turn) % ranks]:
                    i, j, v = rows[place], columns[place], values[place]
                    error = v - w[i] @ h[j]
                    w[i], h[j] = (
                        w[i] + rate * (error * h[j] - penalty * w[i]),
                        h[j] + rate * (error * w[i] - penalty * h[j]),
                    )
        objectives.append(objective())
    return w, h, objectives


def test_ranks_compute_what_one_process_does(size: int) -> None:
    model = fit()
    w, h, objectives = by_one_process(size)
    np.testing.assert_allclose(model.row_factors_, w, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.column_factors_, h, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.objectives_, objectives, rtol=1e-9)
    assert model.mean_ == pytest.approx(elements()[2].mean())


def test_it_does_not_matter_who_passes_an_element(exchange: Any) -> None:
    model, other = fit(), fit(who=1)
    np.testing.assert_allclose(other.row_factors_, model.row_factors_, rtol=1e-10)
    factors = model.row_factors_.tobytes(), model.column_factors_.tobytes()
    assert_same_everywhere(factors, exchange)


def test_a_matrix_of_low_rank_is_found() -> None:
    rows, columns, values = elements()
    model = fit(epochs=150, regularization=0.001)
    errors = values - model.predict(rows, columns)
    assert np.sqrt((errors**2).mean()) < 0.15 * values.std()
    assert model.objectives_[-1] < 0.05 * model.objectives_[0]


def test_a_tolerance_ends_it() -> None:
    assert len(fit(epochs=200, tolerance=0.01).objectives_) < 100


def test_an_evaluation_gathers_the_columns_only(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratings = Ratings(*part(share_of(rank, size)), SHAPE)
    problem = Factorization(ratings, Settings(3, 0.02, 0.05, 0.0, 0), None)
    gathered = []

    def allgather(array: np.ndarray, **options: Any) -> np.ndarray:
        gathered.append(ringar.allgather(array, **options))
        return gathered[-1]

    monkeypatch.setattr(strata, "allgather", allgather)
    problem.objective()
    assert [array.shape for array in gathered] == [(SHAPE[1], 3)]


def test_blocks_share_no_row_and_no_column(rank: int, size: int) -> None:
    rows, columns, values = part(share_of(rank, size))
    ratings = Ratings(rows, columns, values, SHAPE)
    problem = Factorization(ratings, Settings(3, 0.02, 0.05, 0.0, 0), None)
    visits = np.zeros(SHAPE, int)
    for number in range(size):
        blocks = problem.schedule(number, None)
        assert len(np.unique(np.concatenate(blocks))) == sum(map(len, blocks)) == sum(SHAPE)
        for block in blocks:
            rows, columns = block[block < SHAPE[0]], block[block >= SHAPE[0]] - SHAPE[0]
            assert rows.size
            assert columns.size
            visits[np.ix_(rows, columns)] += 1
    assert (visits == 1).all(), "each element is in one block of an epoch"
    loads = [problem.counts[rows].sum() for rows in problem.row_blocks]
    assert max(loads) <= 1.1 * np.mean(loads)
    # A rank has the elements of its rows, each once.
    count = sum(len(waves.values) for waves in problem.waves)
    assert count == loads[rank]


@pytest.mark.ranks(1)
@pytest.mark.parametrize("seed", range(5))
def test_waves(seed: int) -> None:
    random = np.random.default_rng(seed)
    mask = random.random((9, 30)) < 0.4
    rows, columns = np.nonzero(mask)
    order = random.permutation(len(rows))
    rows, columns, values = rows[order], columns[order], random.normal(size=len(rows))
    waves = arrange(rows, columns, values)
    begin = 0
    for end in waves.ends:
        assert end > begin
        assert len(np.unique(waves.rows[begin:end])) == end - begin
        assert len(np.unique(waves.columns[begin:end])) == end - begin
        begin = int(end)
    assert begin == len(rows)
    expected = sorted(zip(rows, columns, values, strict=True))
    assert sorted(zip(waves.rows, waves.columns, waves.values, strict=True)) == expected
    busiest = max(mask.sum(axis=0).max(), mask.sum(axis=1).max())
    assert busiest <= len(waves.ends) < 2 * busiest


@pytest.mark.ranks(1)
def test_waves_of_nothing() -> None:
    nothing = np.empty(0, np.int64)
    waves = arrange(nothing, nothing, np.empty(0))
    w = h = np.ones((2, 2))
    waves.descend(w, h, 0.1, 0.1)
    assert (w == 1).all()
    assert waves.squared_error(w, h) == 0


# --- Bad input.


@pytest.mark.parametrize("everywhere", [True, False], ids=["all ranks", "one rank"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"factors": 0}, "`factors` must be a positive whole number"),
        ({"epochs": 1.5}, "`epochs` must be a positive whole number"),
        ({"learning_rate": 0.0}, "`learning_rate` must be positive"),
        ({"regularization": -1.0}, "`regularization` must be not negative"),
        ({"decay": float("nan")}, "`decay` must be not negative"),
    ],
)
def test_arguments(
    arguments: dict[str, Any], message: str, everywhere: bool, rank: int, size: int
) -> None:
    options = arguments if everywhere or rank == size - 1 else {}
    with pytest.raises(ValueError, match=message):
        MatrixFactorization(**options).fit(*GOOD, SHAPE)


GOOD = (np.array([0, 1]), np.array([0, 1]), np.array([1.0, 2.0]))


@pytest.mark.parametrize("everywhere", [True, False], ids=["all ranks", "one rank"])
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((GOOD[0], GOOD[1], np.ones(3)), r"one length\. Received: \(2,\), \(2,\) and \(3,\)"),
        ((np.ones((1, 2), int),) * 3, r"one dimension and one length"),
        ((np.array([0.0, 1.0]), *GOOD[1:]), r"`rows` must be whole numbers"),
        ((np.array([0, SHAPE[0]]), *GOOD[1:]), r"`rows` must be from 0 to 22.*0 to 23"),
        ((GOOD[0], np.array([-1, 2]), GOOD[2]), r"`columns` must be from 0 to 13"),
        ((*GOOD[:2], np.array([1.0, np.nan])), r"`values` must be finite"),
    ],
)
def test_data(arrays: Any, message: str, everywhere: bool, rank: int, size: int) -> None:
    data = arrays if everywhere or rank == size - 1 else GOOD
    with pytest.raises(ValueError, match=message):
        MatrixFactorization().fit(data[0], data[1], data[2], SHAPE)


def test_a_matrix_that_is_too_small(size: int) -> None:
    for shape in ((size - 1, 9), (9, size - 1), (9,)):
        with pytest.raises(ValueError, match=rf"at least one of each for each of the {size} ranks"):
            MatrixFactorization().fit(*GOOD, shape)  # type: ignore[arg-type]


def test_no_elements() -> None:
    nothing = np.empty(0, np.int64)
    with pytest.raises(ValueError, match=r"a known element on some rank"):
        MatrixFactorization().fit(nothing, nothing, np.empty(0), SHAPE)


@pytest.mark.ranks(2, 3, 4)
def test_elements_on_one_rank_only(rank: int) -> None:
    rows, columns, values = part(slice(None) if rank == 1 else slice(0))
    model = MatrixFactorization(**OPTIONS).fit(rows, columns, values, SHAPE)
    np.testing.assert_allclose(model.row_factors_, fit().row_factors_, rtol=1e-10)


@pytest.mark.ranks(2, 3, 4)
def test_a_rank_without_memory(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise MemoryError("no more memory")

    if rank == 1:
        monkeypatch.setattr(Factorization, "_ratings_of_rank", fail)
    with pytest.raises(MemoryError if rank == 1 else RankError, match="no more memory"):
        fit()


def test_a_rate_that_is_too_large() -> None:
    with pytest.raises(FloatingPointError, match="a learning rate is too large"):
        fit(learning_rate=5.0, epochs=50)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize(
    ("name", "values", "subject"),
    [
        ("factors", (3, 4), "settings"),
        ("seed", (0, 1), "settings"),
        ("epochs", (2, 3), "`epochs`"),
        ("tolerance", (None, 0.1), "`tolerance`"),
    ],
)
def test_other_arguments(rank: int, name: str, values: Any, subject: str) -> None:
    with pytest.raises(ValueError, match=rf"the same {subject} on every rank"):
        fit(**{name: values[rank == 1]})


@pytest.mark.ranks(2, 3, 4)
def test_other_shapes(rank: int) -> None:
    with pytest.raises(ValueError, match=r"the same `shape` on every rank.*\(9, 8\) \(rank 1\)"):
        MatrixFactorization().fit(*GOOD, (9, 8) if rank == 1 else SHAPE)
