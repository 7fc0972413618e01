"""What `ringarrun --check-build` says of GPUs, of libraries that only answer its questions."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ringar.job import nvidia
from ringar.launchers.command_line import check_build
from tests.launchers.helpers import launch

pytestmark = pytest.mark.job

SOURCE = """
#include <stdlib.h>
static int number(const char* name, int* value) {
  const char* text = getenv(name);
  if (text == NULL) return 1;
  *value = atoi(text);
  return 0;
}
int ncclGetVersion(int* version) { return number("TEST_NCCL", version); }
int cuDriverGetVersion(int* version) { return number("TEST_CUDA", version); }
int cuInit(unsigned flags) { return getenv("TEST_GPUS") == NULL ? 100 : (int)flags; }
int cuDeviceGetCount(int* count) { return number("TEST_GPUS", count); }
"""
INSTALL = "pip install cupy-cuda12x nvidia-nccl-cu12, or cupy-cuda13x nvidia-nccl-cu13"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One file for both: with its variables unset, each function fails."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("library")
    (folder / "library.c").write_text(SOURCE)
    path = folder / "library.so"
    command = [compiler, "-shared", "-fPIC", str(folder / "library.c"), "-o", str(path)]
    subprocess.run(command, timeout=60, check=True)
    return str(path)


Report = Callable[..., str]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    """The line of a part, with variables of the environment; the libraries read them in C."""

    def line(name: str, **env: str) -> str:
        for variable in ("TEST_CUDA", "TEST_GPUS", "TEST_NCCL"):
            monkeypatch.delenv(variable, raising=False)
        for variable, value in env.items():
            monkeypatch.setenv(variable, value)
        (match,) = [finding for finding in check_build.findings() if finding.name == name]
        return str(match).strip()

    monkeypatch.setattr(check_build, "_mpi", lambda: iter(()))
    return line


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({"TEST_CUDA": "12040", "TEST_GPUS": "2"}, "CUDA 12.4, 2 GPUs"),
        ({"TEST_CUDA": "13010", "TEST_GPUS": "1"}, "CUDA 13.1, 1 GPU"),
        ({"TEST_CUDA": "12040"}, "CUDA 12.4, no usable GPU"),
        ({}, "version unknown"),
    ],
)
def test_driver(library: str, answers: dict[str, str], says: str, report: Report) -> None:
    line = report("CUDA driver", RINGAR_CUDA_LIBRARY=library, **answers)
    assert line == f"[X] CUDA driver: {says} ({library})"


@pytest.mark.parametrize(("code", "version"), [("21900", "2.19.0"), ("23203", "2.32.3")])
def test_nccl(library: str, code: str, version: str, report: Report) -> None:
    line = report("NCCL", RINGAR_NCCL_LIBRARY=library, TEST_NCCL=code)
    assert line == f"[X] NCCL: {version} ({library})"


@pytest.mark.parametrize(("code", "version"), [("21805", "2.18.5"), ("2804", "2.8.4")])
def test_an_old_nccl(library: str, code: str, version: str, report: Report) -> None:
    line = report("NCCL", RINGAR_NCCL_LIBRARY=library, TEST_NCCL=code)
    says = f"{version} ({library}), but ringar needs 2.19 or later; {INSTALL}"
    assert line == f"[ ] NCCL: {says}"


def test_nccl_that_does_not_answer(library: str, report: Report) -> None:
    line = report("NCCL", RINGAR_NCCL_LIBRARY=library)
    assert line.startswith(f"[ ] NCCL: version unknown ({library}), but ringar needs 2.19 or")


@pytest.mark.parametrize(
    ("name", "variable", "symbol", "kind"),
    [
        ("CUDA driver", "RINGAR_CUDA_LIBRARY", "cuDriverGetVersion", "CUDA driver"),
        ("NCCL", "RINGAR_NCCL_LIBRARY", "ncclGetVersion", "NCCL"),
    ],
)
def test_files_that_are_something_else(
    tmp_path: Path, name: str, variable: str, symbol: str, kind: str, report: Report
) -> None:
    line = report(name, **{variable: "libm.so.6"})
    assert line.startswith(f"[ ] {name}: this is no {kind}: ")
    assert symbol in line
    line = report(name, **{variable: str(tmp_path / "none.so")})
    assert line.startswith(f"[ ] {name}: {tmp_path}/none.so: cannot open shared object file")


def test_nccl_of_a_python_package_is_the_one_that_is_opened(library: str, tmp_path: Path) -> None:
    path = tmp_path / "nvidia/nccl/lib/libnccl.so.2"
    path.parent.mkdir(parents=True)
    shutil.copy(library, path)
    result = launch("--check-build", env={"PYTHONPATH": str(tmp_path), "TEST_NCCL": "22703"})
    assert f"    [X] NCCL: 2.27.3 ({path})\n" in result.stdout


def test_nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "nccl_library", lambda: None)
    monkeypatch.setattr(nvidia, "cuda_library", lambda: None)

    def fail(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", fail)
    assert [str(finding).strip() for finding in check_build._gpu()] == [
        "[ ] CUDA driver: no libcuda.so.1",
        f"[ ] NCCL: no libnccl.so.2; {INSTALL}",
    ]
