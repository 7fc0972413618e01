"""CuPy, the GPU, and the kernels compiled for it. CuPy is imported at first use."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ringar.cupy.kernels.scan import SOURCE
from ringar.cupy.plan import STATIC_SHARED_BYTES, Shape
from ringar.errors import UnsupportedError

if TYPE_CHECKING:
    import cupy


_NULL = np.uint64(0)
"""A null pointer, for arguments that the kernel does not read."""


@functools.cache
def load(function: str = "scan") -> ModuleType:
    """Return the module `cupy`, if it is installed and finds a GPU.

    Args:
        function: the function of `ringar.cupy` that needs it, for errors.

    Raises:
        ImportError: CuPy is not installed.
        UnsupportedError: CuPy finds no GPU.
    """
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            f"ringar.cupy.{function} needs CuPy, which is missing: {error}. "
            "Install it, for example with: pip install cupy-cuda12x nvidia-nccl-cu12"
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
        reason = "CuPy sees none"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        count, reason = 0, str(error)
    if not count:
        on_the_cpu = "parallel.scan.scan" if function == "scan" else function
        raise UnsupportedError(
            f"ringar.cupy.{function} expected a CUDA GPU with its driver; received: {reason}. "
            f"On the CPU use ringar.{on_the_cpu}"
        )
    return cupy


@functools.cache
def attributes(device: int) -> dict[str, int]:
    """Return the attributes of a GPU, by CUDA's names."""
    numbers: dict[str, int] = load().cuda.Device(device).attributes
    return numbers


@functools.cache
def kernels(shape: Shape, device: int) -> KernelLauncher:
    """Return the kernels for a shape and a device: a loaded function belongs to one device."""
    return KernelLauncher(load(), shape)


class KernelLauncher:
    """Launch kernels on the current device and stream."""

    def __init__(self, cupy: Any, shape: Shape) -> None:
        self._cupy = cupy
        module = cupy.RawModule(code=SOURCE, options=compiler_options(shape))
        self._functions = {
            f"{name}_{orientation}": module.get_function(f"{name}_{orientation}")
            for name in ("up", "chain")
            for orientation in ("plain", "transposed")
        }
        if shape.up_shared > STATIC_SHARED_BYTES:
            for orientation in ("plain", "transposed"):
                self._functions[f"up_{orientation}"].max_dynamic_shared_size_bytes = shape.up_shared

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> cupy.ndarray:
        """Return memory from CuPy's pool, which reuses freed memory in stream order."""
        return self._cupy.empty(shape, dtype)

    def launch(self, kernel: str, grid: int, block: int, shared: int, args: Sequence[Any]) -> None:
        """Launch `kernel`; an argument that is None becomes a null pointer."""
        function = self._functions[kernel]
        function((grid,), (block,), tuple(_NULL if a is None else a for a in args),
                 shared_mem=shared)  # fmt: skip


def compiler_options(shape: Shape) -> tuple[str, ...]:
    """Return options of NVRTC."""
    return ("--std=c++17", *(f"-D{name}={value}" for name, value in shape.defines().items()))
