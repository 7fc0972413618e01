"""`make test-gpu` without a GPU: what it would run, and what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import run_on_gpus
from tests.plugin.jobs import ROOT, JobResult
from tests.run_on_gpus import ALL, COLLECTIVES, Run, plan

ONE_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def test_plan_of_one_gpu() -> None:
    assert plan(1, (2, 30)) == [Run(1, ALL), Run(2, COLLECTIVES, ONE_GPU)]
    for version in ((2, 29), None):
        single, left_out = plan(1, version)
        assert single == Run(1, ALL)
        assert left_out.left_out.startswith("since two ranks on one GPU need NCCL 2.30, and")
    assert str(left_out).endswith("there is none")


@pytest.mark.parametrize(("gpus", "ranks"), [(2, 2), (3, 3), (8, 4)])
def test_plan_of_several_gpus(gpus: int, ranks: int) -> None:
    assert plan(gpus, (2, 19)) == [Run(1, ALL), Run(ranks, COLLECTIVES)]


def test_no_gpu_no_plan() -> None:
    assert plan(0, (2, 30)) == []


def test_paths_exist() -> None:
    assert all((ROOT / run.path).is_dir() for run in plan(2, None))


def test_tests_that_are_all_skipped_have_not_passed() -> None:
    assert run_on_gpus.has_passed(0, "...\n12 passed, 3 skipped in 1.0s\n")
    assert not run_on_gpus.has_passed(0, "sss\n3 skipped in 0.1s\n")
    assert not run_on_gpus.has_passed(1, "1 failed, 12 passed in 1.0s\n")
    assert not run_on_gpus.has_passed(None, "12 passed")


def test_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("RINGAR_CUDA_LIBRARY", str(tmp_path / "libcuda.so.1"))
    assert run_on_gpus.main(["--check"]) == run_on_gpus.main([]) == 1
    assert "no GPU: " in capsys.readouterr().err


@pytest.mark.parametrize("version", [(2, 27), (2, 30)])
def test_what_is_run_and_what_is_left_out(
    version: tuple[int, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs: list[tuple[Any, ...]] = []

    def run_job(np: int | None, program: list[str], **how: Any) -> JobResult:
        jobs.append((np, program[-1], how["env"].get("NCCL_MULTI_RANK_GPU_ENABLE")))
        assert how["env"]["RINGAR_TEST_GPU"] == "1"
        return JobResult(0, "1 passed" if np is None else "1 skipped", "", 1.0)

    monkeypatch.setattr(run_on_gpus, "count_gpus", lambda: (1, ""))
    monkeypatch.setattr(run_on_gpus, "nccl_version", lambda: version)
    monkeypatch.setattr(run_on_gpus, "run_job", run_job)
    code = run_on_gpus.main([])
    printed = capsys.readouterr()
    if version == (2, 30):
        assert (code, jobs) == (1, [(None, ALL, None), (2, COLLECTIVES, "1")])
        assert "failed, or no test ran: tests/cupy/collectives on 2 ranks" in printed.err
    else:
        assert (code, jobs) == (0, [(None, ALL, None)])
        assert (
            "left out, since two ranks on one GPU need NCCL 2.30, and there is 2.27" in printed.out
        )
