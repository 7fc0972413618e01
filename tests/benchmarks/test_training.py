"""The benchmarks that train: what they would try, and one small real run."""

from __future__ import annotations

import pytest

from benchmarks import __main__ as everything
from benchmarks import overhead, scaling, threads, training
from benchmarks.series import Series

pytestmark = pytest.mark.job


def test_settings_of_threads() -> None:
    assert (1, 1, "core") in threads.settings(2, 2)
    assert {binding for *_, binding in threads.settings(4, 2)} == {"none"}
    assert max(intra for intra, *_ in threads.settings(1, 8)) == 8


def test_rows_of_overhead_and_scaling() -> None:
    plain, ours = Series([[2e-3, 2e-3]]), Series([[2.5e-3]])
    rows = overhead.rows({("mlp", 2, False): plain, ("mlp", 2, True): ours})
    assert [row["of_plain"] for row in rows] == [1.0, pytest.approx(0.8)]
    one = Series([[1e-3]])
    table = scaling.rows({("mlp", 1, False): one, ("mlp", 2, True): Series([[1.25e-3]])})
    assert table[1]["ideal"] == pytest.approx(2 * 8 / 1e-3)
    assert table[1]["efficiency"] == pytest.approx(0.8)


def test_musts_without_figures_say_so() -> None:
    rows = everything.musts(everything.Figures())
    assert len(rows) == 15
    assert {row[3] for row in rows} == {"not measured"}


def test_a_job_trains_and_ranks_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(training.STEPS, "mlp", 5)
    result = Series()
    training.train("mlp", 2, result, epochs=1)
    assert not result.failure
    assert len(result.rounds) == 1
    assert result.wrong == 0
