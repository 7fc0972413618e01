"""What is found of NVIDIA, in folders that stand in for those of a machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ringar.job import native, nvidia, place
from tests.plugin import run_job


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a GPU."""
    (tmp_path / "dev").mkdir()
    monkeypatch.setattr(nvidia, "_DRIVER", tmp_path / "driver")
    monkeypatch.setattr(nvidia, "_DEVICES", tmp_path / "dev")
    return tmp_path


def add_folders(machine: Path, *names: str) -> None:
    for name in names:
        (machine / "driver/gpus" / name).mkdir(parents=True)


def add_files(machine: Path, *names: str) -> None:
    for name in names:
        (machine / "dev" / name).touch()


def test_no_gpu(machine: Path) -> None:
    assert not nvidia.has_driver()
    assert nvidia.visible_gpus({}) == ()


def test_gpus_are_counted_by_folders_of_the_driver(machine: Path) -> None:
    add_folders(machine, "0000:3b:00.0", "0000:86:00.0")
    assert nvidia.has_driver()
    assert nvidia.visible_gpus({}) == ("0", "1")


def test_gpus_are_counted_by_files_where_the_driver_shows_none(machine: Path) -> None:
    add_files(machine, "nvidiactl", "nvidia-uvm", "nvidia0", "nvidia7", "nvidia10", "nvidia1x")
    assert nvidia.has_driver()
    assert nvidia.visible_gpus({}) == ("0", "1", "2")


def test_a_container_with_one_of_two_gpus(machine: Path) -> None:
    add_folders(machine, "0000:3b:00.0", "0000:86:00.0")
    add_files(machine, "nvidiactl", "nvidia1")
    assert nvidia.visible_gpus({}) == ("0",)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("0", ("0",)),
        ("2, 0", ("2", "0")),
        ("GPU-8932f937,MIG-3eb87630-93d5", ("GPU-8932f937", "MIG-3eb87630-93d5")),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("1,-1,0", ("1",)),
        ("0,0", ("0", "0")),
    ],
)
def test_the_variable_of_cuda_comes_first(machine: Path, text: str, gpus: tuple[str, ...]) -> None:
    add_folders(machine, "0000:3b:00.0", "0000:86:00.0", "0000:af:00.0")
    assert nvidia.visible_gpus({"CUDA_VISIBLE_DEVICES": text}) == gpus


def test_libraries_that_variables_name_need_not_exist() -> None:
    environ = {"RINGAR_CUDA_LIBRARY": "/no/cuda.so", "RINGAR_NCCL_LIBRARY": "/no/nccl.so"}
    assert nvidia.cuda_library(environ) == "/no/cuda.so"
    assert nvidia.nccl_library(environ) == "/no/nccl.so"
    config = place.read_config(environ, None, None, None)
    assert (config.cuda_library, config.nccl_library) == (b"/no/cuda.so", b"/no/nccl.so")


def test_without_variables_and_packages_libraries_are_those_of_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    environ = {"RINGAR_CUDA_LIBRARY": "", "RINGAR_NCCL_LIBRARY": ""}
    assert nvidia.cuda_library(environ) is None
    assert nvidia.nccl_library(environ) is None
    config = place.read_config(environ, None, None, None)
    assert (config.cuda_library, config.nccl_library) == (None, None)
    assert native.Config().nccl_library is None


def test_nccl_of_a_python_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages share the folder `nvidia`, which is in several places and no module of any."""
    library = tmp_path / "two/nvidia/nccl/lib/libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    (tmp_path / "one/nvidia/cublas/lib").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "two")
    monkeypatch.syspath_prepend(tmp_path / "one")
    assert nvidia.nccl_library({}) == str(library)
    assert place.read_config({}, None, None, None).nccl_library == str(library).encode()


@pytest.mark.job
def test_nothing_large_is_imported() -> None:
    large = {"numpy", "tensorflow", "cupy"}
    code = f"import sys; from ringar.job import gpus, nvidia; print({large} & set(sys.modules))"
    result = run_job(None, [sys.executable, "-c", code]).check()
    assert result.stdout == "set()\n"
