"""`make gpu-report` without a GPU: its plan, its lines, and its programs on CPUs."""

from __future__ import annotations

import sys

import pytest

from tests.gpu_report import __main__ as gpu_report
from tests.gpu_report.parts import Part, parts
from tests.plugin import run_job

pytestmark = pytest.mark.job


def test_without_a_gpu_every_part_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_report, "count_gpus", lambda: (0, "no driver"))
    monkeypatch.setattr(gpu_report, "environment", lambda: iter(["- NCCL: none"]))
    assert gpu_report.main([]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# GPU report: 0 GPUs (no driver)"
    table = [line for line in lines if line.startswith("| ")][1:]
    assert len(table) == len(parts(0, None))
    assert all("| not possible here | no GPU |" in line for line in table)


def test_the_plan_leaves_out_what_the_machine_cannot_do() -> None:
    reasons = {part.impossible for part in parts(1, (2, 29))}
    assert reasons == {"", "one GPU", "ranks that share a GPU need NCCL 2.30"}
    assert {part.impossible for part in parts(1, (2, 30))} == {"", "one GPU"}
    assert {part.impossible for part in parts(8, (2, 30))} == {""}
    assert max(part.ranks for part in parts(8, (2, 30))) == 8


def test_a_failure_is_told_and_the_report_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = [
        Part("first", 0, ("-c", "raise ValueError('a bad card')")),
        Part("second", 0, ("-c", "import time; time.sleep(60)"), seconds=1.0),
        Part("third", 0, ("-m", "pytest", "--version")),
        Part("fourth", 0, ("-c", "print('GPU: 3 ms')"), detail="GPU:"),
    ]
    monkeypatch.setattr(gpu_report, "count_gpus", lambda: (1, ""))
    monkeypatch.setattr(gpu_report, "environment", lambda: iter(()))
    monkeypatch.setattr(gpu_report, "parts", lambda gpus, nccl: plan)
    assert gpu_report.main([]) == 1
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert "| first | FAIL | ValueError: a bad card" in table[0]
    assert "| second | FAIL | no end after" in table[1]
    assert "| third | FAIL |" in table[2]  # no test has run
    assert "| fourth | pass | GPU: 3 ms" in table[3]


def test_training_and_calls_on_cpus() -> None:
    result = run_job(
        2,
        """
        from tests.gpu_report import calls, training
        training.main("cnn")
        calls.main()
        """,
    ).check()
    assert "CPU: " in result.stdout
    assert "ms a step of 64 rows a rank" in result.stdout
    assert "allreduce of 4 KiB: compiled " in result.stdout


def test_a_rank_that_dies_on_cpus() -> None:
    part = next(part for part in parts(2, None) if part.title.startswith("a rank that dies"))
    result = run_job(2, [sys.executable, *part.words], deadline=part.seconds)
    state, detail = gpu_report.judge(part, result)
    assert state == gpu_report.PASS, result
    assert "the others knew after" in detail
