"""The model of the workers that a scan needs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.scan import crossover as scan_crossover
from benchmarks.scan.crossover import ARITHMETIC, MOST, workers_needed


@pytest.mark.parametrize("units", [1, 2, 8, 20, 64])
def test_a_long_chain_needs_one_worker_more_than_a_step_costs(units: int) -> None:
    assert ARITHMETIC.ratio(units) == units + 1
    assert workers_needed(units, 10**9, ARITHMETIC) == units + 2


@pytest.mark.parametrize("units", [1, 8, 20, 64])
def test_a_short_chain_has_a_length_from_which_on_it_is_possible(units: int) -> None:
    ratio = ARITHMETIC.ratio(units)
    lengths = range(2, 2000)
    possible = [n > ratio * (math.log2(n) + math.log2(math.e * math.log(2))) for n in lengths]
    verdicts = [workers_needed(units, n, ARITHMETIC) is not None for n in lengths]
    assert 0 < sum(verdicts) < len(verdicts)
    assert abs(sum(possible) - sum(verdicts)) <= 1


def test_what_is_needed_is_faster_and_one_less_is_not() -> None:
    for units in (1, 4, 20, 100):
        for length in (30, 300, 1000, 30_000):
            serial = scan_crossover.serial_cost(units, length, ARITHMETIC)
            workers = workers_needed(units, length, ARITHMETIC)
            if workers is None:
                costs = [scan_crossover.scan_cost(units, length, p, ARITHMETIC)
                         for p in (2, length // 2, length, MOST)]  # fmt: skip
                assert min(costs) >= serial
                continue
            assert scan_crossover.scan_cost(units, length, workers, ARITHMETIC) < serial
            assert scan_crossover.scan_cost(units, length, workers - 1, ARITHMETIC) >= serial


def test_more_units_need_more_and_longer_chains_fewer() -> None:
    lengths = np.unique(np.geomspace(10, 30_000, 60).astype(int))
    table = scan_crossover.table(range(1, 257, 5), lengths, ARITHMETIC)
    counted = np.nan_to_num(table, nan=np.inf)
    with np.errstate(invalid="ignore"):
        assert (counted[1:] >= counted[:-1]).all()
        assert (counted[:, 1:] <= counted[:, :-1]).all()
    assert np.isinf(counted[-1, 0])
    assert workers_needed(256, 1000, ARITHMETIC) is None
    assert workers_needed(20, 1000, ARITHMETIC, most=20) is None


def test_measured_costs_go_through_what_was_measured() -> None:
    costs = scan_crossover.measured({4: (2e-8, 1e-8), 64: (8e-6, 4e-7)})
    assert costs.product(4) == pytest.approx(2e-8)
    assert costs.apply(64) == pytest.approx(4e-7)
    assert costs.product(16) == pytest.approx(4e-7), "a straight line where both axes are log"
    assert costs.ratio(4) == pytest.approx(3)
    assert workers_needed(4, 10**8, costs) == 4
