"""ringar.cupy.scan: NVRTC, which needs no GPU, and a real GPU."""

from __future__ import annotations

import ctypes.util
import importlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringar.cupy import scan
from ringar.cupy.device import compiler_options
from ringar.cupy.kernels.scan import SOURCE
from ringar.cupy.plan import Shape
from tests.cupy.common import SIZES, TOLERANCE, arrays, error, serial

pytestmark = pytest.mark.ranks(1)


def gpus() -> int:
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception:
        return 0


needs_gpu = pytest.mark.skipif(gpus() == 0, reason="no GPU")


# NVRTC, which compiles for GPUs and needs none.


def nvrtc() -> Any:
    package = importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.cuda_nvrtc")
    folders = list(package.submodule_search_locations or []) if package else []
    files = [str(f) for folder in folders for f in Path(folder).glob("lib/libnvrtc.so*")]
    for name in [*files, ctypes.util.find_library("nvrtc")]:
        if name:
            return ctypes.CDLL(name)
    pytest.skip("no libnvrtc")


@pytest.mark.parametrize("architecture", ["compute_80", "compute_90"])
def test_nvrtc_compiles_the_kernels(architecture: str) -> None:
    library = nvrtc()
    for size in (1, 5, 8, 20, 32, 33, 64):
        for itemsize in (4, 8):
            options = compiler_options(Shape(size, itemsize, affine=size % 2 == 0))
            texts = [o.encode() for o in (f"--gpu-architecture={architecture}", *options)]
            program = ctypes.c_void_p()
            status = library.nvrtcCreateProgram(
                ctypes.byref(program), SOURCE.encode(), b"scan.cu", 0, None, None
            )
            assert status == 0
            code = library.nvrtcCompileProgram(
                program, len(texts), (ctypes.c_char_p * len(texts))(*texts)
            )
            length = ctypes.c_size_t()
            library.nvrtcGetProgramLogSize(program, ctypes.byref(length))
            log = ctypes.create_string_buffer(length.value)
            library.nvrtcGetProgramLog(program, log)
            assert code == 0, (size, itemsize, log.value.decode())
            assert b"warning" not in log.value, log.value.decode()
            library.nvrtcDestroyProgram(ctypes.byref(program))


# A real GPU.


@needs_gpu
@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("size", [*SIZES, 100])
def test_on_the_gpu(size: int, itemsize: int) -> None:
    import cupy

    scan_on_the_cpu: Any = importlib.import_module("ringar.parallel.scan").scan

    for steps, batch, affine in ((1, 1, True), (37, 5, False), (130, 16, True), (1000, 2, True)):
        operands = arrays(steps, batch, size, itemsize, affine)
        device_arrays = [None if a is None else cupy.asarray(np.asarray(a)) for a in operands]
        for adjoint in (False, True):
            expected = serial(*operands, adjoint=adjoint)
            for levels in (None, 0, 1, 4, 7, 99):
                result = scan(*device_arrays, adjoint=adjoint, levels=levels).get()
                assert error(result, expected, adjoint) < TOLERANCE[itemsize]
            host_arrays = [None if a is None else np.asarray(a) for a in operands]
            other = np.asarray(scan_on_the_cpu(*host_arrays, adjoint=adjoint))
            assert error(result, other.astype(np.float64), adjoint) < 2 * TOLERANCE[itemsize]


@needs_gpu
def test_on_a_stream_of_the_callers() -> None:
    import cupy

    operands = arrays(500, 4, 20, 4, affine=True)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        device_arrays = [cupy.asarray(np.asarray(a)) for a in operands]
        result = cupy.asnumpy(scan(*device_arrays, adjoint=True, levels=5), stream=stream)
        stream.synchronize()
    assert error(result, serial(*operands, adjoint=True), True) < TOLERANCE[4]
