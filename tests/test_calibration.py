"""The calibration of this machine: its file, who may use it, and jobs that do."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringar.job import calibration, native
from ringar.launchers.command_line.check_build import findings
from tests.launchers.helpers import launch
from tests.plugin import run_job

pytestmark = pytest.mark.ranks(1)

KIND = calibration.Kind("1.0", "a processor", "2 cores", 2)
NUMBER = 12 << 20
AUTO: dict[str, str] = {}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache directory of a user who has none yet; in it, the folder of ringar."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ringar"


def config(**changes: int) -> native.Config:
    """A job of two ranks on this host."""
    fields = {"rank": 0, "size": 2, "local_rank": 0, "local_size": 2, "cross_size": 1, **changes}
    return native.Config(**fields)


def test_what_is_kept_is_found() -> None:
    assert calibration.load(KIND) is None
    for number in (NUMBER, 0):
        assert calibration.store(KIND, number)
        assert calibration.load(KIND) == number


@pytest.mark.parametrize(
    "change", [{"version": "1.1"}, {"processor": "another"}, {"topology": "4 cores"}, {"ranks": 3}]
)
def test_a_file_of_another_kind_is_ignored_and_written_anew(change: dict[str, Any]) -> None:
    other = dataclasses.replace(KIND, **change)
    calibration.store(other, NUMBER)
    other.path.rename(KIND.path)  # also where the kind is in the name
    assert calibration.load(KIND) is None
    calibration.store(KIND, 1)
    assert calibration.load(KIND) == 1


def _without(text: str, key: str) -> str:
    return json.dumps({name: value for name, value in json.loads(text).items() if name != key})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "12",
        lambda text: "\udcff",
        lambda text: _without(text, "past_caches_bytes"),
        lambda text: _without(text, "version"),
        *(
            lambda text, value=value: text.replace(str(NUMBER), value)
            for value in ('"8"', "-1", "true", "1.5", "null", str(2**70))
        ),
    ],
)
def test_a_corrupt_file_is_ignored_and_written_anew(spoil: Callable[[str], str]) -> None:
    calibration.store(KIND, NUMBER)
    text = KIND.path.read_text()
    KIND.path.write_text(spoil(text), errors="surrogateescape")
    assert calibration.load(KIND) is None
    calibration.store(KIND, NUMBER)
    assert KIND.path.read_text() == text


def test_the_cache_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert calibration.folder() == tmp_path / ".cache" / "ringar"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert calibration.folder() == Path("/elsewhere/ringar")


def test_writers_at_once_leave_a_whole_file(cache: Path) -> None:
    program = (
        "import sys\n"
        "from ringar.job import calibration\n"
        f"kind = calibration.{KIND!r}\n"
        "for _ in range(200):\n"
        "    assert calibration.store(kind, int(sys.argv[1]))\n"
    )
    numbers = [1 << n for n in range(20, 24)]
    calibration.store(KIND, numbers[0])
    writers = [subprocess.Popen([sys.executable, "-c", program, str(n)]) for n in numbers]
    while any(writer.poll() is None for writer in writers):
        assert calibration.load(KIND) in numbers
    assert [writer.returncode for writer in writers] == [0] * len(writers)
    assert list(cache.iterdir()) == [KIND.path]


def test_the_first_rank_proposes_what_is_kept() -> None:
    assert calibration.proposal(config(), AUTO) == calibration.MEASURE
    calibration.store(calibration.this_kind(2), NUMBER)
    assert calibration.proposal(config(), AUTO) == NUMBER
    assert calibration.proposal(config(rank=1, local_rank=1), AUTO) == calibration.NEVER
    assert calibration.proposal(config(), {calibration.VARIABLE: "auto"}) == NUMBER
    assert calibration.proposal(config(), {calibration.VARIABLE: "again"}) == calibration.MEASURE


@pytest.mark.parametrize(
    ("changes", "environment", "why"),
    [
        ({"size": 1, "local_size": 1}, {}, "one rank"),
        ({"size": 4, "cross_size": 2}, {}, "several hosts"),
        ({"size": 3, "local_size": 3}, {}, "more ranks (3) than CPUs (2)"),
        ({}, {"RINGAR_TUNING": "past=4096"}, "RINGAR_TUNING is set"),
        ({}, {calibration.VARIABLE: "off"}, "RINGAR_CALIBRATION=off"),
    ],
)
def test_built_in_defaults(
    changes: dict[str, int],
    environment: dict[str, str],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    job = config(**changes)
    calibration.store(calibration.this_kind(job.size), NUMBER)
    assert calibration.proposal(job, environment) == calibration.NEVER
    assert why in calibration.obstacle(job, environment)


def test_without_a_writable_cache_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A file in the place of the folder: permissions do not hold up root.
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert calibration.proposal(config(), AUTO) == calibration.NEVER
    assert not calibration.store(KIND, NUMBER)
    assert "cannot keep the calibration of this machine" in caplog.text


def test_a_word_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="RINGAR_CALIBRATION must be one of auto, off, again"):
        calibration.proposal(config(rank=1, local_rank=1), {calibration.VARIABLE: "on"})


def test_check_build_shows_what_is_kept() -> None:
    def lines() -> list[str]:
        return [finding.detail for finding in findings() if finding.name == "calibration"]

    (none,) = lines()
    assert "none yet" in none
    for ranks, number in ((2, 16 << 20), (10, 0)):
        calibration.store(calibration.this_kind(ranks), number)
    calibration.store(KIND, NUMBER)  # of another machine
    two, ten = lines()
    assert two.startswith("2 ranks: allreduces of 16 MiB and more store their results past")
    assert ten.startswith("10 ranks: no allreduce gains")


PROGRAM = """
import hashlib
import numpy as np
import ringar
from ringar.job import native
ringar.init()
random = np.random.default_rng(ringar.rank())
digest = hashlib.sha256()
for n in (100, 2_000_003):
    for dtype in (np.float32, np.float16):
        x = random.standard_normal(n).astype(dtype)
        digest.update(ringar.allreduce(x, op=ringar.Sum).tobytes())
library = native.library()
print(library.ringar_past_caches_bytes(), library.ringar_has_calibrated(), digest.hexdigest())
"""


def _job(**environment: str) -> tuple[int, bool, str]:
    """What both ranks of a job used, whether they had measured it, and their results."""
    result = run_job(2, PROGRAM, launcher_args=["--no-prefix"], env=environment).check()
    first, second = (line for line in result.stdout.splitlines() if line)
    assert first == second
    number, measured, digest = first.split()
    return int(number), measured == "1", digest


@pytest.mark.job
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one CPU: no calibration for two ranks")
def test_a_job_measures_and_the_next_one_reads(cache: Path) -> None:
    kind = calibration.this_kind(2)
    environment = {"XDG_CACHE_HOME": str(cache.parent), calibration.VARIABLE: "auto"}
    kind.path.parent.mkdir(parents=True)
    kind.path.write_text("{")
    number, measured, digest = _job(**environment)
    # On a busy machine there may be too little time to measure anything; then nothing is kept.
    assert calibration.load(kind) == (number if measured else None)

    calibration.store(kind, 4096)
    assert _job(**environment) == (4096, False, digest)
    assert _job(**environment, RINGAR_TUNING="past=8192") == (8192, False, digest)
    assert _job(**{**environment, calibration.VARIABLE: "off"}) == (0, False, digest)
    assert calibration.load(kind) == 4096


@pytest.mark.job
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one CPU: no calibration for two ranks")
def test_ringarrun_calibrates(cache: Path) -> None:
    kind = calibration.this_kind(2)
    calibration.store(kind, 77)
    result = launch("--calibrate", env={"XDG_CACHE_HOME": str(cache.parent)})
    number = calibration.load(kind)
    if result.returncode == 0:
        assert number != 77
        assert result.stdout == f"{calibration.describe(2, number or 0)}\nkept in {kind.path}\n"
    else:
        assert "the machine is busy" in result.stdout
        assert number == 77


@pytest.mark.slow
@pytest.mark.job
def test_ringarrun_says_why_it_does_not_calibrate() -> None:
    ranks = 1 + (os.cpu_count() or 1)
    result = launch("--calibrate", "-np", str(ranks))
    assert result.returncode == 1
    assert f"there are more ranks ({ranks}) than CPUs" in result.stdout
    result = launch("--calibrate", "train.py")
    assert result.returncode == 2
    assert "--calibrate: expected no program to run, received 'train.py'" in result.stderr
