"""Peers that crash, hang, are missing or wrong, and a harness that is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.collectives import __main__ as collectives
from benchmarks.harness import environments
from benchmarks.harness.machine import ROOT
from tests.plugin import fast_if

pytestmark = [pytest.mark.job, pytest.mark.deadline(120)]

ADAPTER = """
import os, sys, time
from pathlib import Path
from benchmarks.harness.definitions import DEFINITIONS
from benchmarks.harness.launch import {launcher} as command

TITLE = "{name}"
REQUIREMENTS = {requirements}

class Peer:
    def __init__(self):
        self.rank = int(os.environ.get("RANK") or os.environ["RINGAR_RANK"])
        self.size = 2
        Path({folder!r}, str(os.getpid())).touch()

    def barrier(self):
        pass

    def allreduce(self, array):
        right = DEFINITIONS["allreduce"].expected(array.size, self.rank, self.size)
        {body}
        return lambda: right.copy()
"""


def adapter(
    folder: Path, name: str, body: str, launcher: str = "plain", requirements: str = "()"
) -> str:
    """Writes an adapter to a file; its ranks leave files named after their process ids."""
    path = folder / f"{name}.py"
    path.write_text(
        ADAPTER.format(
            name=name, body=body, launcher=launcher, requirements=requirements, folder=str(folder)
        )
    )
    return str(path)


def pids(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("body", "reason", "limit"),
    [
        fast_if(False, "sys.exit('out of luck')", "out of luck", 60),
        fast_if(False, "os.kill(os.getpid(), 9)", "exit code 9", 60),
        ("self.rank and sys.exit(1); time.sleep(900)", "exit code 1", 60),
        ("time.sleep(900)", "no end after 5 s", 5),
        ("os.fork() or (os.setsid(), time.sleep(900)); sys.exit(1)", "exit code 1", 60),
    ],
)
def test_a_peer_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, reason: str, limit: int
) -> None:
    names = [adapter(tmp_path, "failing", body), adapter(tmp_path, "right", "pass")]
    code = collectives.main(
        ["--peers", ",".join(names), "--sizes", "4,64", "--rounds", "2", "--limit", str(limit)]
    )
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert "failing: not measured" in printed
    assert reason in printed
    assert printed.count("| right") == 2, printed
    assert not [pid for pid in pids(tmp_path) if alive(pid)]


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "FOLDER", tmp_path / "environments")
    requirements = "('--no-index', 'ringar-has-no-such-peer')"
    name = adapter(tmp_path, "missing", "pass", requirements=requirements)
    assert collectives.main(["--peers", name, "--sizes", "4", "--rounds", "2"]) == 0
    captured = capsys.readouterr()
    assert "missing: not measured (ERROR: No matching distribution" in captured.out
    assert captured.err.count("installing") == 1


def test_a_wrong_peer_fails_the_run_after_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [
        adapter(tmp_path, "wrong", "right = right + self.rank"),
        adapter(tmp_path, "right", "pass"),
    ]
    assert collectives.main(["--peers", ",".join(names), "--sizes", "64", "--rounds", "1"]) == 1
    captured = capsys.readouterr()
    assert "| right" in captured.out
    assert "32 wrong elements" in captured.err


def test_an_unknown_peer_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        collectives.main(["--peers", "nothing"])
    assert "peer must be a file or one of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        ("plain", signal.SIGKILL),
        ("ringarrun", signal.SIGINT),
        pytest.param("plain", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("plain", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("ringarrun", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("ringarrun", signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_harness_leaves_no_process(
    tmp_path: Path, launcher: str, number: signal.Signals
) -> None:
    name = adapter(tmp_path, "hanging", "time.sleep(100)", launcher)
    command = [sys.executable, "-m", "benchmarks.allreduce", "--peers", name, "--sizes", "4"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + 60
        while len(pids(tmp_path)) < 2:
            assert time.monotonic() < give_up, "the ranks did not start"
            time.sleep(0.05)
        os.kill(process.pid, number)
        assert process.wait(20) != 0
        give_up = time.monotonic() + 10
        while (left := [pid for pid in pids(tmp_path) if alive(pid)]) and (
            time.monotonic() < give_up
        ):
            time.sleep(0.05)
        assert not left
    finally:
        process.kill()
