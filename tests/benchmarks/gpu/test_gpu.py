"""The benchmark on GPUs without one: its cases, its tables, and whole runs with stand-ins."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import allreduce
from benchmarks.collectives import __main__ as collectives
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import cases as gpu_cases
from benchmarks.gpu import report as gpu_report
from benchmarks.gpu import worker as gpu_worker
from benchmarks.gpu.cases import IN_PLACE, OUT_OF_PLACE, Case
from benchmarks.harness.processes import JobFailedError
from ringar.cupy import device
from tests.benchmarks.gpu import standin as gpu_standin
from tests.benchmarks.gpu.standin import Nccl, Ringar, Spoil

pytestmark = pytest.mark.ranks(1)


def options(collective: str = "allreduce", sizes: tuple[int, ...] = (64,)) -> dict[str, Any]:
    return {"collective": collective, "dtype": "float32", "sizes": sizes, "rounds": 1}


# What is measured.


def test_cases_of_allreduce_are_sizes_and_a_group() -> None:
    found = gpu_cases.cases(options(sizes=(4, 64 << 20)), 2)
    assert [(case.bytes, len(case.parts)) for case in found] == [
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
        arrays = [case.given(rank, ranks)[0] for rank in range(ranks)]
        for calls in (1, 2, 7, 200):
            found = arrays
            with np.errstate(over="ignore"):
                for _ in range(calls):
                    found = [functools.reduce(np.add, found)] * ranks
                right = case.expected(0, ranks)[0] * case.growth(ranks, calls)
            assert right.dtype == dtype
            np.testing.assert_array_equal(found[0], right)
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


def result(case: int, peer: str, placement: str, *times: float, wrong: int = 0) -> dict[str, Any]:
    rounds = [{"time": t, "events": t, "enqueue": t / 2, "latency": [t, 2 * t, 3 * t],
               "wrong": wrong} for t in times]  # fmt: skip
    return {"case": case, "peer": peer, "placement": placement, "rounds": rounds}


def reports(*of_ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"rank": rank, "results": results} for rank, results in enumerate(of_ranks)]


def test_rows_have_the_rates_of_nccl_tests_and_the_slowest_rank() -> None:
    cases = [Case("allreduce", "float32", 1 << 18)]
    fast = [result(0, "nccl", OUT_OF_PLACE, 1e-3, 5e-3, 3e-3)]
    slow = [result(0, "nccl", OUT_OF_PLACE, 2e-3, 4e-3, 6e-3, wrong=1)]
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


def test_musts_of_one_rank_and_of_several() -> None:
    sizes = (64 << 20, 256 << 20)
    cases = gpu_cases.cases(options(sizes=sizes), 2)

    def found(ranks: int, nccl: float) -> list[list[str]]:
        one = [result(i, "ringar", p, 1.0) for i in (0, 1, 3) for p in (OUT_OF_PLACE, IN_PLACE)]
        one += [result(2, "ringar", p, 1.1) for p in (OUT_OF_PLACE, IN_PLACE)]
        one += [result(i, "copy", OUT_OF_PLACE, 0.95 if i else 0.8) for i in (0, 1, 3)]
        one += [result(i, "nccl", p, nccl) for i in (0, 1, 3) for p in (OUT_OF_PLACE, IN_PLACE)]
        rows = gpu_report.rows(reports(*[one] * ranks), cases)
        return [target.row() for target in gpu_report.targets(rows, ranks)]

    copy, group, in_place = found(1, 1.0)
    assert copy[1:] == ["<= 1.1x", "1.25, 1.05x", "no"]
    assert group[1:] == in_place[1:] == ["<= 1.15x", "1.1x", "yes"]
    assert [row[3] for row in found(2, 1.0)] == ["yes"] * 4
    assert [row[3] for row in found(2, 0.9)] == ["no", "yes", "no", "yes"]
    assert gpu_report.targets([], 2) == []


def test_a_must_without_figures_is_not_measured() -> None:
    one = [result(0, "ringar", OUT_OF_PLACE, 1.0)]
    rows = gpu_report.rows(reports(one, one), [Case("allreduce", "float32", 4)])
    assert {target.row()[3] for target in gpu_report.targets(rows, 2)} == {"not measured"}


# Whole runs with stand-ins.


@pytest.fixture
def standing_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ringar]:
    """Puts stand-ins in the place of CuPy, NCCL, ringar.cupy, and the job."""

    def install(spoil: Spoil | None = None, gpus: int = 1) -> Ringar:
        ringar = Ringar(spoil)
        monkeypatch.setitem(sys.modules, "ringar.cupy", ringar)
        monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", Nccl())
        monkeypatch.setattr(gpu, "count_gpus", lambda: gpus)
        monkeypatch.setattr(gpu, "run_ranks", functools.partial(gpu_standin.run_ranks, gpus=gpus))
        monkeypatch.setattr(gpu_worker, "nccl_version", lambda: "2.30.3")
        monkeypatch.setattr(gpu_cases, "GROUP", (3, 500, 1, 70))
        monkeypatch.setattr(gpu_cases, "FEWEST_CALLS", 6)
        monkeypatch.setattr(gpu_cases, "MOST_CALLS", 6)
        gpu_standin.Stream.by_ptr.clear()
        return ringar

    return install


ARGUMENTS = ["--device", "gpu", "--sizes", "4,4000", "--rounds", "2"]
Printed = pytest.CaptureFixture[str]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_allreduce(
    ranks: int, dtype: str, standing_in: Callable[..., Ringar], capsys: Printed, tmp_path: Path
) -> None:  # fmt: skip
    ringar = standing_in()
    destroyed = gpu_standin.Communicator.destroyed
    output = ["--dtype", dtype, "-np", str(ranks), "--output", str(tmp_path / "found.json")]
    code = allreduce.main([*ARGUMENTS, *output])
    printed = capsys.readouterr()
    assert code == 0, printed
    assert f"# allreduce on {ranks} ranks, {ranks} to a card: 1 x stand-in" in printed.out
    assert "(CUDA 12.8), CuPy stand-in (CUDA 12.9), NCCL 2.30.3" in printed.out
    shared = "NCCL_MULTI_RANK_GPU_ENABLE=1"
    assert (shared in printed.out) == (shared in printed.err) == (ranks > 1)
    assert "4 gradients of ResNet-50, in one call" in printed.out
    assert "| what " in printed.out
    data = json.loads((tmp_path / "found.json").read_text())
    measured = {(r["peer"], r["arrays"], p) for r in data["rows"] for p in r["placements"]}
    assert measured == {
        *((peer, n, p) for peer in ("ringar", "nccl") for n in (1, 4)
          for p in (OUT_OF_PLACE, IN_PLACE)),
        ("copy", 1, OUT_OF_PLACE),
    }  # fmt: skip
    assert gpu_report.wrong_elements(data["rows"]) == 0
    assert len(data["gpus"]) == data["ranks"] == ranks
    assert len(data["targets"]) == (3 if ranks == 1 else 4)
    assert ringar.synchronized > 0
    assert gpu_standin.Communicator.destroyed == destroyed + ranks


def test_the_stand_in_takes_what_ringar_takes() -> None:
    real = importlib.import_module("ringar.cupy")
    functions = [name for name in vars(Ringar) if not name.startswith("_")]
    assert len(functions) == 7
    for name in functions:
        own = [*inspect.signature(getattr(Ringar, name)).parameters.values()][1:]
        there = inspect.signature(getattr(real, name)).parameters
        assert {p.name: p.kind for p in own}.items() <= {
            n: p.kind for n, p in there.items()
        }.items()
        in_order = [p.name for p in own if p.kind is not p.KEYWORD_ONLY]
        assert in_order == [*there][: len(in_order)], name


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "broadcast", "alltoall"])
def test_other_collectives(
    collective: str, ranks: int, standing_in: Callable[..., Ringar], capsys: Printed
) -> None:
    standing_in(gpus=2)
    assert collectives.main([*ARGUMENTS, "--collective", collective, "-np", str(ranks)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("| ringar ") == printed.count("| NCCL (CuPy) ") == 4
    assert "| what " not in printed


def test_as_many_ranks_as_gpus(standing_in: Callable[..., Ringar], capsys: Printed) -> None:
    standing_in(gpus=2)
    gpu_standin.Device.used.clear()
    assert allreduce.main([*ARGUMENTS, "--peers", "ringar,copy"]) == 0
    printed = capsys.readouterr()
    assert "on 2 ranks, 1 to a card: 2 x stand-in" in printed.out
    assert "MULTI_RANK" not in printed.out + printed.err
    assert sorted(gpu_standin.Device.used) == [0, 1]


def one_element(rank: int, number: int, results: list[Any]) -> None:
    if (rank, number) == (1, 10):  # the last of those that are waited for once
        results[-1][-1] += 1


def nothing_new(rank: int, number: int, results: list[Any]) -> None:
    if number > 4 and rank == 0:
        for one in results:
            one.fill(-1)


@pytest.mark.parametrize("spoil", [one_element, nothing_new])
def test_a_wrong_element_fails_the_run(
    spoil: Spoil, standing_in: Callable[..., Ringar], capsys: Printed
) -> None:
    standing_in(spoil)
    assert allreduce.main([*ARGUMENTS, "-np", "2"]) == 1
    assert "wrong elements" in capsys.readouterr().err


def test_a_call_in_place_that_is_left_out_is_seen(
    standing_in: Callable[..., Ringar], monkeypatch: pytest.MonkeyPatch
) -> None:
    standing_in()
    measure, kept = gpu_worker.Bench._throughput, []

    def one_call_less(self: Any, peer: Any, run: Any) -> Any:
        self._calls -= 1
        found = measure(self, peer, run)
        self._calls += 1
        kept.append(found)
        return found

    monkeypatch.setattr(gpu_worker.Bench, "_throughput", one_call_less)
    assert allreduce.main([*ARGUMENTS, "-np", "2"]) == 1
    assert kept


def test_without_cupys_nccl_the_others_are_measured(
    standing_in: Callable[..., Ringar], monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    standing_in()
    monkeypatch.setattr(Nccl, "available", False)
    assert allreduce.main([*ARGUMENTS, "-np", "2"]) == 0
    printed = capsys.readouterr().out
    assert "NCCL (CuPy): not measured (ImportError: CuPy finds no NCCL)" in printed
    assert "not measured |" in printed
    assert "| ringar " in printed


def test_without_ringar_the_run_fails(
    standing_in: Callable[..., Ringar], monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    standing_in()

    def refuse(self: Any) -> None:
        raise RuntimeError("rank 0 | no NCCL")

    monkeypatch.setattr(Ringar, "synchronize", refuse)
    assert allreduce.main([*ARGUMENTS, "-np", "2"]) == 1
    printed = capsys.readouterr()
    assert "ringar was not measured: RuntimeError: rank 0 | no NCCL" in printed.err
    assert "| NCCL (CuPy) " in printed.out


def test_a_job_that_fails(
    standing_in: Callable[..., Ringar], monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    standing_in()

    def fail(*_: Any) -> Any:
        raise JobFailedError("no end after 3 s")

    monkeypatch.setattr(gpu, "run_ranks", fail)
    assert allreduce.main(ARGUMENTS) == 1
    assert "the job has failed: no end after 3 s" in capsys.readouterr().err


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    device.load.cache_clear()
    assert allreduce.main(["--device", "gpu"]) == 2
    assert "pip install 'ringar[gpu]'" in capsys.readouterr().err
    device.load.cache_clear()


def test_bad_options(standing_in: Callable[..., Ringar], capsys: Printed) -> None:
    standing_in()
    assert allreduce.main([*ARGUMENTS, "--peers", "openmpi"]) == 2
    assert "peers on GPUs are" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        allreduce.main(["--dtype", "float16"])
    assert "needs --device gpu" in capsys.readouterr().err
