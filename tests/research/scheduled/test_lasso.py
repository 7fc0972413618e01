"""The Lasso against scikit-learn's, and its errors, raised on every rank."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

import ringar
from ringar.errors import RankError
from ringar.parallel import scheduled
from ringar.research.scheduled import Dynamic, Lasso, Random, RoundRobin, Scheduler
from ringar.research.scheduled.designs import Rows
from ringar.research.scheduled.lasso import LassoProblem
from tests.comparison import assert_same_everywhere

pytestmark = [pytest.mark.usefixtures("initialized")]

Data = tuple[np.ndarray, np.ndarray]


@functools.cache
def diabetes() -> Data:
    """Real data, whose 35 columns are strongly correlated, beside one that is constant."""
    from sklearn.datasets import load_diabetes
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    data = load_diabetes()
    x = PolynomialFeatures(2).fit_transform(data.data[:, 2:9])
    return StandardScaler().fit_transform(x) + 3.0, data.target


def share_of(data: Data, cut: str) -> Data:
    """This rank's part; the first ranks have more than the last ones."""
    x, y = data
    size, rank = ringar.size(), ringar.rank()
    total = x.shape[0 if cut == "rows" else 1]
    ends = [round(total * (1 - (1 - q / size) ** 1.3)) for q in range(size + 1)]
    part = slice(ends[rank], ends[rank + 1])
    return (x[part], y[part]) if cut == "rows" else (x[:, part], y)


def fit(model: Lasso, data: Data, **options: Any) -> Lasso:
    return model.fit(*share_of(data, model.cut), **options)


def objective(data: Data, alpha: float, coefficients: np.ndarray, intercept: float) -> float:
    x, y = data
    errors = y - x @ coefficients - intercept
    return float(errors @ errors / (2 * len(y)) + alpha * np.abs(coefficients).sum())


def by_scikit_learn(data: Data, alpha: float, **options: Any) -> float:
    from sklearn import linear_model

    model = linear_model.Lasso(alpha, tol=1e-10, max_iter=10**6, **options).fit(*data)
    return objective(data, alpha, model.coef_, model.intercept_)


@pytest.mark.parametrize(
    ("cut", "alpha"),
    [
        ("rows", 1.0),
        ("columns", 5.0),
        pytest.param("rows", 5.0, marks=pytest.mark.slow),
        pytest.param("columns", 1.0, marks=pytest.mark.slow),
    ],
)
def test_the_objective_is_scikit_learns(cut: str, alpha: float) -> None:
    data = diabetes()
    model = fit(Lasso(alpha, cut=cut, scheduler=Dynamic(8), tolerance=1e-6), data)
    best = by_scikit_learn(data, alpha)
    result = objective(data, alpha, model.coef_, model.intercept_)
    assert abs(result - best) <= 1e-6 * best
    assert model.objectives_[-1] == pytest.approx(result, rel=1e-10)
    assert model.converged_
    assert result - best <= model.dual_gap_ <= 1e-6 * result
    assert model.coef_[0] == 0, "the constant column"


@pytest.mark.parametrize("cut", ["rows", "columns"])
def test_without_an_intercept(cut: str) -> None:
    x, y = diabetes()
    data = x - 3.0, y - y.mean()
    model = fit(Lasso(2.0, cut=cut, fit_intercept=False, tolerance=1e-6), data)
    assert model.intercept_ == 0
    result = objective(data, 2.0, model.coef_, 0.0)
    assert result == pytest.approx(by_scikit_learn(data, 2.0, fit_intercept=False), rel=1e-6)


def test_all_ranks_have_the_same_bits(
    rank: int, exchange: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = LassoProblem.gap
    # As on unlike processors, whose kernels of BLAS round differently.
    monkeypatch.setattr(LassoProblem, "gap", lambda *arguments: gap(*arguments) + rank * 1e-14)
    model = fit(Lasso(1.0, tolerance=1e-3), diabetes())
    coefficients = model.coef_.tobytes()
    result = coefficients, model.intercept_, model.objectives_, model.dual_gap_
    assert_same_everywhere(result, exchange)


def test_predictions() -> None:
    x, y = diabetes()
    model = fit(Lasso(1.0, tolerance=1e-3), (x, y))
    rest = y - model.predict(x)
    assert rest.mean() == pytest.approx(0, abs=1e-8)
    assert (rest**2).mean() < 0.7 * y.var()


@pytest.mark.parametrize("scheduler", [Dynamic(8), Random(8, rho=0.5), RoundRobin(8, rho=0.5)])
def test_rows_on_ranks_are_rows_of_one_process(scheduler: Scheduler) -> None:
    """All ranks but one have no rows: the sums are those of one process, up to rounding."""
    x, y = diabetes()
    rows = slice(None) if ringar.rank() == ringar.size() - 1 else slice(0)
    runs = [
        Lasso(1.0, scheduler=scheduler, rounds=40, every=1, tolerance=None).fit(*part)
        for part in ((x[rows], y[rows]), share_of((x, y), "rows"))
    ]
    np.testing.assert_allclose(runs[0].objectives_, runs[1].objectives_, rtol=1e-9)
    np.testing.assert_allclose(runs[0].coef_, runs[1].coef_, rtol=1e-6, atol=1e-8)


# --- Variables that depend on each other.


def duplicated(times: int = 4) -> Data:
    """Columns of diabetes, several times each."""
    x, y = diabetes()
    return np.repeat(x[:, 1:8], times, axis=1), y


def equally_correlated() -> Data:
    """Pairs of columns have a correlation of 0.3, and 40 of them an eigenvalue of 12.7."""
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 40)) * 0.7**0.5 + random.normal(size=(300, 1)) * 0.3**0.5
    return x, x.sum(axis=1) + random.normal(size=300)


def rises(model: Lasso, data: Data) -> list[float]:
    """How much rounds have raised the objective, in parts of it."""
    objectives = fit(model, data).objectives_
    return [(after - before) / before for before, after in itertools.pairwise(objectives)]


@pytest.mark.parametrize("cut", ["rows", "columns"])
@pytest.mark.parametrize("data", [duplicated, equally_correlated])
def test_only_scheduled_updates_never_raise_the_objective(cut: str, data: Any) -> None:
    options: Any = {"cut": cut, "every": 1, "tolerance": None}
    for unscheduled in (Dynamic(40, rho=None), RoundRobin(40), Random(40)):
        model = Lasso(0.1, scheduler=unscheduled, rounds=3, **options)
        assert max(rises(model, data())) > 0.5, unscheduled.describe()
    for checked in (Dynamic(40), RoundRobin(40, rho=0.5), Random(40, rho=0.9)):
        model = Lasso(0.1, scheduler=checked, rounds=60, **options)
        changes = rises(model, data())
        assert max(changes) <= 1e-12, checked.describe()
        assert sum(changes[:10]) < -0.1, "and they do lower it"


def test_unscheduled_updates_diverge() -> None:
    model = Lasso(0.1, scheduler=RoundRobin(40), rounds=2000, every=10)
    with pytest.raises(FloatingPointError, match=r"smaller `rho`"):
        fit(model, duplicated())


@pytest.mark.slow
@pytest.mark.deadline(400)
def test_a_tenth_of_the_rounds_of_round_robin_on_10_000_columns() -> None:
    from benchmarks.scheduled import designs, rounds

    data = designs.correlated(rows=400, columns=10_000)
    runs = rounds.to_reach(data, share=1e-3, limit=10_000)
    assert 10 * runs["dynamic"].rounds < runs["round robin"].rounds


# --- Bad input.


@pytest.mark.parametrize("everywhere", [True, False], ids=["all ranks", "one rank"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 0.0}, "`alpha` must be positive and finite"),
        ({"alpha": float("inf")}, "`alpha` must be positive and finite"),
        ({"cut": "tiles"}, '`cut` must be "rows" or "columns"'),
        ({"scheduler": "dynamic"}, "`scheduler` must be a ringar.parallel.scheduled.Scheduler"),
        ({"scheduler": Dynamic(0)}, "`picks` must be a positive whole number"),
    ],
)
def test_arguments(
    arguments: dict[str, Any], message: str, everywhere: bool, rank: int, size: int
) -> None:
    is_wrong = everywhere or rank == size - 1
    with pytest.raises(ValueError, match=message):
        fit(Lasso(**{"alpha": 1.0, **(arguments if is_wrong else {})}), diabetes())


ONE = np.ones((6, 4))


@pytest.mark.parametrize("everywhere", [True, False], ids=["all ranks", "one rank"])
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (ONE, np.ones(5), r"the shape \(rows, columns\).*\(6, 4\) and \(5,\)"),
        (ONE[0], np.ones(4), r"the shape \(rows, columns\)"),
        (ONE, np.ones((6, 1)), r"the shape \(rows, columns\)"),
        (ONE * np.nan, np.ones(6), r"`x` must be finite"),
        (ONE, np.full(6, np.inf), r"`y` must be finite"),
        (ONE.astype(str), np.ones(6), r"`x` must be a dense array of numbers"),
        (csr_array(ONE), np.ones(6), r"`x` must be a dense array of numbers. Received: object"),
    ],
)
def test_data(x: Any, y: Any, message: str, everywhere: bool, rank: int, size: int) -> None:
    good = np.random.default_rng(0).normal(size=(6, 4)), np.arange(6.0)
    pair = (x, y) if everywhere or rank == size - 1 else good
    with pytest.raises(ValueError, match=message):
        Lasso().fit(*pair)


def test_no_rounds_between_evaluations() -> None:
    with pytest.raises(ValueError, match="`every` must be a whole number of at least 1"):
        fit(Lasso(every=0), diabetes())


@pytest.mark.parametrize("cut", ["rows", "columns"])
@pytest.mark.parametrize("intercept", [True, False])
def test_squares_that_overflow(cut: str, intercept: bool) -> None:
    x, y = diabetes()
    x = x.copy()
    x[:, 5] *= 1e155
    with pytest.raises(ValueError, match=r"Received: column 5 .*with a sum of .*Scale it"):
        fit(Lasso(cut=cut, fit_intercept=intercept), (x, y))
    x[:, 5] = 1e155 + 1e150 * np.arange(len(x))  # only its mean is too large
    with pytest.raises(ValueError, match=r"Received: column 5 .*with a sum of .*Scale it"):
        fit(Lasso(cut=cut, fit_intercept=intercept), (x, y))
    with pytest.raises(ValueError, match=r"the squares of `y` must have a finite sum.*Scale `y`"):
        fit(Lasso(cut=cut, fit_intercept=intercept), (diabetes()[0], y * 1e155))


@pytest.mark.parametrize("cut", ["rows", "columns"])
def test_no_rows_at_all(cut: str) -> None:
    with pytest.raises(ValueError, match="a row on some rank"):
        Lasso(0.1, cut=cut).fit(np.empty((0, 3)), np.empty(0))


def test_columns_that_are_all_constant() -> None:
    with pytest.raises(ValueError, match="there must be a variable to update"):
        Lasso().fit(ONE, np.arange(6.0))


@pytest.mark.ranks(2, 3, 4)
def test_cuts_that_do_not_fit(rank: int) -> None:
    x, y = diabetes()
    with pytest.raises(ValueError, match=r"same number of columns of `x` on.*36 .*35 .*whole rows"):
        Lasso().fit(x[:, rank == 1 :], y)
    with pytest.raises(ValueError, match=r"same number of rows of `x` on every.*whole columns"):
        Lasso(cut="columns").fit(x[rank == 1 :], y[rank == 1 :])
    with pytest.raises(ValueError, match=r"same digest of `y` on every rank.*the whole `y`"):
        Lasso(cut="columns").fit(x, y + (rank == 1))


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("cut", ("rows", "columns")),
        ("alpha", (1.0, 2.0)),
        ("fit_intercept", (True, False)),
        ("scheduler", (Dynamic(8), Dynamic(8, seed=1))),
        ("scheduler", (Dynamic(8, explore=0.2), Dynamic(8, explore=0.3))),
        ("rounds", (10, 20)),
    ],
)
def test_other_arguments(rank: int, name: str, values: Any) -> None:
    with pytest.raises(ValueError, match=rf"the same `{name}` on every rank; received"):
        fit(Lasso(**{"alpha": 1.0, name: values[rank == 1]}), diabetes())


@pytest.mark.ranks(2, 3, 4)
def test_a_rank_without_memory(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise MemoryError("no more memory")

    if rank == 1:
        monkeypatch.setattr(Rows, "_measure", fail)
    with pytest.raises(MemoryError if rank == 1 else RankError, match="no more memory"):
        fit(Lasso(), diabetes())


def test_a_warning_where_rounds_run_out() -> None:
    if ringar.rank() == 0:
        with pytest.warns(UserWarning, match=r"has not converged: the duality gap is"):
            model = fit(Lasso(rounds=3), diabetes())
    else:
        model = fit(Lasso(rounds=3), diabetes())
    assert not model.converged_
    assert model.rounds_[-1] == 3
    assert model.dual_gap_ > 1e-7 * model.objectives_[-1]


def test_as_many_rounds_as_are_wanted() -> None:
    model = fit(Lasso(rounds=3, tolerance=None), diabetes())
    assert model.rounds_[-1] == 3
    assert not model.converged_
    longer = fit(Lasso(rounds=200, tolerance=None), diabetes())
    assert longer.dual_gap_ < model.dual_gap_ < np.inf


def test_it_is_public() -> None:
    assert ringar.parallel.scheduled.Lasso is scheduled.Lasso
