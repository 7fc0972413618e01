"""Whole runs of the benchmark on GPUs, with stand-ins for CuPy, NCCL and `ringar.cupy`."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import allreduce
from benchmarks.collectives import __main__ as collectives
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import cases as gpu_cases
from benchmarks.gpu import report as gpu_report
from benchmarks.gpu import worker as gpu_worker
from benchmarks.gpu.cases import IN_PLACE, OUT_OF_PLACE
from benchmarks.harness.processes import JobFailedError
from tests.benchmarks.gpu import standin as gpu_standin
from tests.benchmarks.gpu.standin import Nccl, Ringar, Spoil

pytestmark = [pytest.mark.ranks(1), pytest.mark.slow]


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
        parameters = [*inspect.signature(getattr(Ringar, name)).parameters.values()][1:]
        expected = inspect.signature(getattr(real, name)).parameters
        assert {p.name: p.kind for p in parameters}.items() <= {
            n: p.kind for n, p in expected.items()
        }.items()
        in_order = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        assert in_order == [*expected][: len(in_order)], name


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
    gpu_standin.Device.numbers.clear()
    assert allreduce.main([*ARGUMENTS, "--peers", "ringar,copy"]) == 0
    printed = capsys.readouterr()
    assert "on 2 ranks, 1 to a card: 2 x stand-in" in printed.out
    assert "MULTI_RANK" not in printed.out + printed.err
    assert sorted(gpu_standin.Device.numbers) == [0, 1]


def one_element(rank: int, number: int, results: list[Any]) -> None:
    if (rank, number) == (1, 10):  # the last of those that are waited for once
        results[-1][-1] += 1


def nothing_new(rank: int, number: int, results: list[Any]) -> None:
    if number > 4 and rank == 0:
        for array in results:
            array.fill(-1)


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
    measure, figures = gpu_worker.Bench._throughput, []

    def one_call_less(self: Any, peer: Any, run: Any) -> Any:
        self._calls -= 1
        figure = measure(self, peer, run)
        self._calls += 1
        figures.append(figure)
        return figure

    monkeypatch.setattr(gpu_worker.Bench, "_throughput", one_call_less)
    assert allreduce.main([*ARGUMENTS, "-np", "2"]) == 1
    assert figures


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


def test_bad_options(standing_in: Callable[..., Ringar], capsys: Printed) -> None:
    standing_in()
    assert allreduce.main([*ARGUMENTS, "--peers", "openmpi"]) == 2
    assert "peers on GPUs are" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        allreduce.main(["--dtype", "float16"])
    assert "needs --device gpu" in capsys.readouterr().err
