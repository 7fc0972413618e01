"""Wheels of CUDA, NCCL and TensorFlow for tests that read them; nothing is installed.

pip keeps them in its cache. What is unpacked goes as soon as the last test of a wheel has ended.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

#: The oldest CUDA that ringar serves, the newest that pip finds, and both ends of CUDA 12 and 13.
CUDA = (
    "nvidia-cuda-runtime-cu12==12.0.*",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-runtime",
)
#: The oldest NCCL that ringar serves, and the newest.
NCCL = ("nvidia-nccl-cu12==2.19.3", "nvidia-nccl-cu12")
#: The oldest TensorFlow that ringar serves, the last ones with an NCCL of their own, the newest.
TENSORFLOW = ("tensorflow==2.16.*", "tensorflow==2.18.*", "tensorflow==2.20.*", "tensorflow")

#: A Python for which each of these releases of TensorFlow has a wheel, whichever runs the tests.
PYTHON = ("--python-version", "3.11")
INSTALLED = "installed"


def unpack(requirement: str, folder: Path, *prefixes: str, options: tuple[str, ...] = ()) -> Path:
    """Unpack the members of a wheel that begin with a prefix, and return the folder.

    Skips the test where pip cannot fetch the wheel.
    """
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
    command = [*pip, *options, "--dest", str(folder), requirement]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        pytest.skip(f"no {requirement}: {(result.stderr.strip().splitlines() or [''])[-1]}")
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(folder, [n for n in archive.namelist() if n.startswith(prefixes)])
    wheels[0].unlink()
    return folder


@pytest.fixture(scope="session", params=CUDA)
def cuda_include(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The folder of cuda.h in a wheel."""
    folder = unpack(request.param, tmp_path_factory.mktemp("cuda"), "nvidia/")
    yield next(folder.glob("nvidia/*/include/cuda.h")).parent
    shutil.rmtree(folder)


@pytest.fixture(scope="session", params=NCCL)
def nccl_wheel(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The folder of NCCL in a wheel."""
    folder = unpack(request.param, tmp_path_factory.mktemp("nccl"), "nvidia/nccl/")
    yield folder / "nvidia" / "nccl"
    shutil.rmtree(folder)


_SLOW = (pytest.mark.slow, pytest.mark.deadline(1500))  # 600 MB each


@pytest.fixture(
    scope="session", params=[INSTALLED, *(pytest.param(r, marks=_SLOW) for r in TENSORFLOW)]
)
def tensorflow_folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The folder of the TensorFlow that is installed; of wheels for GPUs, headers and libraries."""
    if request.param == INSTALLED:
        spec = importlib.util.find_spec("tensorflow")  # found, not imported: that takes seconds
        if spec is None or spec.origin is None:
            pytest.skip("TensorFlow is not installed")
        yield Path(spec.origin).parent
        return
    if platform.machine() != "x86_64":
        pytest.skip("TensorFlow's wheels for GPUs are for x86-64")
    members = ("tensorflow/include/", "tensorflow/libtensorflow")
    folder = tmp_path_factory.mktemp("tensorflow")
    yield unpack(request.param, folder, *members, options=PYTHON) / "tensorflow"
    shutil.rmtree(folder)
