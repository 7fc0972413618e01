"""The benchmark on GPUs, without one: its cases and its tables."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import pytest

from benchmarks import allreduce
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import cases as gpu_cases
from benchmarks.gpu import report as gpu_report
from benchmarks.gpu.cases import IN_PLACE, OUT_OF_PLACE, Case
from ringar.cupy import device

pytestmark = pytest.mark.ranks(1)


def options(collective: str = "allreduce", sizes: tuple[int, ...] = (64,)) -> dict[str, Any]:
    return {"collective": collective, "dtype": "float32", "sizes": sizes, "rounds": 1}


# What is measured.


def test_cases_of_allreduce_are_sizes_and_a_group() -> None:
    plan = gpu_cases.cases(options(sizes=(4, 64 << 20)), 2)
    assert [(case.bytes, len(case.parts)) for case in plan] == [
        (4, 0), (64 << 20, 0), (102_334_368, 214), (102_334_368, 0),
    ]  # fmt: skip
    assert sum(gpu_cases.GROUP) * 4 == 102_334_368
    assert gpu_cases.cases(options(sizes=(102_334_368,)), 2)[::2][0].parts == ()
    assert len(gpu_cases.cases(options(sizes=(102_334_368, 4, 5)), 2)) == 3


def test_cases_of_others_are_sizes() -> None:
    (case,) = gpu_cases.cases(options("alltoall", (100,)), 3)
    assert (case.total, case.placements) == (24, (OUT_OF_PLACE,))
    half = {**options(sizes=(100,)), "dtype": "float16"}
    assert gpu_cases.sizes(half, 3)[0].total == 50
    assert Case("broadcast", "float32", 4).placements == (OUT_OF_PLACE, IN_PLACE)


def test_calls_follow_the_size() -> None:
    calls = [Case("allreduce", "float32", n).calls(2 << 30) for n in (1, 4 << 20, 64 << 20)]
    assert calls == [200, 128, 20]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_repeated_sums_in_place_are_known_exactly(dtype: str) -> None:
    case = Case("allreduce", dtype, 500)
    assert (case.growth(4, 2) is None) == (dtype == "float16")
    for ranks in (1, 2, 4, 8):
        if case.growth(ranks, 2) is None:
            continue
        arrays = [case.inputs(rank, ranks)[0] for rank in range(ranks)]
        for calls in (1, 2, 7, 200):
            totals = arrays
            with np.errstate(over="ignore"):
                for _ in range(calls):
                    totals = [functools.reduce(np.add, totals)] * ranks
                right = case.expected(0, ranks)[0] * case.growth(ranks, calls)
            assert right.dtype == dtype
            np.testing.assert_array_equal(totals[0], right)
    assert case.growth(3, 1) == 1
    assert case.growth(3, 2) is None
    assert Case("broadcast", dtype, 4).growth(3, 9) == 1


def test_float16_is_refused_where_sums_are_not_exact() -> None:
    assert gpu.refusal(8, "float16", ["ringar"]) == ""
    assert "up to 8 ranks. Received: 9" in gpu.refusal(9, "float16", ["ringar"])
    assert "ringar, nccl, copy. Received: openmpi" in gpu.refusal(2, "float32", ["openmpi"])
    case = Case("allreduce", "float16", 251)
    exact = Case("allreduce", "float32", 251).expected(0, 8)[0]
    np.testing.assert_array_equal(case.expected(0, 8)[0].astype("float32"), exact)


def test_ranks_that_share_a_gpu_are_told_to_nccl() -> None:
    assert gpu.environment(2, 1) == {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    assert gpu.environment(2, 2) == {}


# Tables.


def result(case: int, peer: str, placement: str, *times: float, errors: int = 0) -> dict[str, Any]:
    rounds = [{"time": t, "events": t, "enqueue": t / 2, "latency": [t, 2 * t, 3 * t],
               "wrong": errors} for t in times]  # fmt: skip
    return {"case": case, "peer": peer, "placement": placement, "rounds": rounds}


def reports(*of_ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"rank": rank, "results": results} for rank, results in enumerate(of_ranks)]


def test_rows_have_the_rates_of_nccl_tests_and_the_slowest_rank() -> None:
    cases = [Case("allreduce", "float32", 1 << 18)]
    fast = [result(0, "nccl", OUT_OF_PLACE, 1e-3, 5e-3, 3e-3)]
    slow = [result(0, "nccl", OUT_OF_PLACE, 2e-3, 4e-3, 6e-3, errors=1)]
    (row,) = gpu_report.rows(reports(fast, slow, fast, fast), cases)
    figures = row["placements"][OUT_OF_PLACE]
    assert [figures["time"][key] for key in ("seconds", "min", "max")] == [5e-3, 2e-3, 6e-3]
    assert figures["latency"]["seconds"] == 10e-3
    assert figures["algbw"] == pytest.approx((1 << 20) / 5e-3 / 1e9)
    assert figures["busbw"] == pytest.approx(figures["algbw"] * 1.5)
    assert gpu_report.wrong_elements([row]) == figures["wrong"] == 3
    header, _, line = gpu_report.throughput_table([row]).splitlines()
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "1 MiB", "262144", "float32", "sum", "-1", "1", "NCCL (CuPy)",
        "5000", "2000, 6000", "0.21", "0.315", "3",
    ]  # fmt: skip
    assert IN_PLACE not in header


def test_targets_of_one_rank_and_of_several() -> None:
    sizes = (64 << 20, 256 << 20)
    cases = gpu_cases.cases(options(sizes=sizes), 2)

    def targets_of(ranks: int, nccl: float) -> list[list[str]]:
        results = [result(i, "ringar", p, 1.0) for i in (0, 1, 3) for p in (OUT_OF_PLACE, IN_PLACE)]
        results += [result(2, "ringar", p, 1.1) for p in (OUT_OF_PLACE, IN_PLACE)]
        results += [result(i, "copy", OUT_OF_PLACE, 0.95 if i else 0.8) for i in (0, 1, 3)]
        results += [result(i, "nccl", p, nccl) for i in (0, 1, 3) for p in (OUT_OF_PLACE, IN_PLACE)]
        rows = gpu_report.rows(reports(*[results] * ranks), cases)
        return [target.row() for target in gpu_report.targets(rows, ranks)]

    copy, group, in_place = targets_of(1, 1.0)
    assert copy[1:] == ["<= 1.1x", "1.25, 1.05x", "no"]
    assert group[1:] == in_place[1:] == ["<= 1.15x", "1.1x", "yes"]
    assert [row[3] for row in targets_of(2, 1.0)] == ["yes"] * 4
    assert [row[3] for row in targets_of(2, 0.9)] == ["no", "yes", "no", "yes"]
    assert gpu_report.targets([], 2) == []


def test_a_target_without_figures_is_not_measured() -> None:
    results = [result(0, "ringar", OUT_OF_PLACE, 1.0)]
    rows = gpu_report.rows(reports(results, results), [Case("allreduce", "float32", 4)])
    assert {target.row()[3] for target in gpu_report.targets(rows, 2)} == {"not measured"}


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    device.load.cache_clear()
    assert allreduce.main(["--device", "gpu"]) == 2
    assert "pip install cupy-cuda12x nvidia-nccl-cu12" in capsys.readouterr().err
    device.load.cache_clear()
