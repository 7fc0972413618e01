"""All tests here have ringar running and a GPU: with RINGAR_TEST_GPU=1 a real one, else stand-ins.

ringar is started anew for each file, since it reads where CUDA and NCCL are when it starts, and
other tests are to run without stand-ins.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringar.cupy import device
from ringar.job import nvidia
from tests.cupy.collectives.common import Gpu, RealGpu, StandIn
from tests.plugin import fixtures
from tests.plugin.jobs import ROOT
from tests.plugin.place import RANK, SIZE
from tests.standins import gpu_library

IS_REAL = os.environ.get("RINGAR_TEST_GPU") == "1"


@pytest.fixture(scope="session")
def library() -> Path | None:
    """The stand-in for CUDA and NCCL; None: there is a real GPU."""
    if IS_REAL:
        return None
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("no C++ compiler")
    return gpu_library.build(ROOT / "build" / "standins")


@pytest.fixture(scope="module")
def gpu(initialized: None, library: Path | None) -> Iterator[Gpu]:
    """CuPy, whose current device is this rank's."""
    if library is None:
        yield from _real()
        return
    stand_in = StandIn(library, RANK, SIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(nvidia.CUDA_LIBRARY_VARIABLE, str(library))
        patch.setenv(nvidia.NCCL_LIBRARY_VARIABLE, str(library))
        patch.setitem(sys.modules, "cupy", stand_in.cupy)
        device.load.cache_clear()
        fixtures.restart()
        yield stand_in
        fixtures.leave()
        gc.collect()
        stand_in.close()
    device.load.cache_clear()
    fixtures.initialize()


def _real() -> Iterator[Gpu]:
    import cupy  # missing on a machine with a GPU: a failure

    import ringar

    count = cupy.cuda.runtime.getDeviceCount()
    with cupy.cuda.Device(ringar.local_rank() % count):
        yield RealGpu(cupy)


@pytest.fixture(autouse=True)
def _used_well(gpu: Gpu) -> Iterator[None]:
    yield
    gpu.check()
