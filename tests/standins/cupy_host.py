"""A stand-in for CuPy where there is no GPU: NumPy arrays, and kernels compiled for this processor.

Only what `ringar.cupy.scan` uses, and nothing of how it behaves in time. Kernels run in
`cuda_host.h`; all that tests need are compiled at once, since starting the compiler takes longest.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent
KERNELS = ("up_plain", "up_transposed", "chain_plain", "chain_transposed")
GUARD = 64
"""Numbers before and behind each array that must stay as they are."""

_UNIT = """
namespace {name} {{
{defines}
#include "kernels.cu"
Quad ringar_shared[{quads}];
{entries}
{undefines}
}}
"""
_ENTRY = """
extern "C" const char* {name}_{kernel}(unsigned grid, unsigned block, size_t bytes, int count,
                                       const uint64_t* values, const int* sizes, int order) {{
  return cuda_host::launch({name}::{kernel}, ringar_shared, sizeof(ringar_shared), grid, block,
                           bytes, count, values, sizes, order);
}}
"""


class Compiled:
    """The kernels of one source for several lists of options, in shared libraries.

    Args:
        folder: where they are compiled.
        source: the kernels.
        options: lists of NVRTC's options.
        flags: more of the compiler's.
        limit: seconds after which the compiler counts as hung.
    """

    def __init__(
        self,
        folder: Path,
        source: str,
        options: Sequence[tuple[str, ...]],
        flags: Sequence[str] = (),
        limit: float = 120,
    ) -> None:
        (folder / "kernels.cu").write_text(source)
        self.units: dict[tuple[str, ...], tuple[ctypes.CDLL, str]] = {}
        halves = [options[0::2], options[1::2]]
        started = [_compiler(folder, i, half, flags) for i, half in enumerate(halves) if half]
        for process, target, half in started:
            output, _ = process.communicate(timeout=limit)
            if process.returncode:
                raise RuntimeError(f"the kernels do not compile for the host:\n{output}")
            library = ctypes.CDLL(str(target))
            self.units.update({words: (library, f"unit{i}") for i, words in enumerate(half)})


def _compiler(
    folder: Path, number: int, options: Sequence[tuple[str, ...]], flags: Sequence[str]
) -> Any:
    file, target = folder / f"host{number}.cc", folder / f"host{number}.so"
    units = [_unit(f"unit{i}", words) for i, words in enumerate(options)]
    text = '#include "cuda_host.h"\n#define RINGAR_EXPORT static\n' + "".join(units)
    file.write_text(text)
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-U_FORTIFY_SOURCE",
               *flags, f"-I{FOLDER}", f"-I{folder}", "-o", str(target), str(file)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return process, target, options


def _unit(name: str, options: tuple[str, ...]) -> str:
    pairs = [option[2:].split("=") for option in options if option.startswith("-D")]
    return _UNIT.format(
        name=name,
        defines="\n".join(f"#define {key} {value}" for key, value in pairs),
        undefines="\n".join(f"#undef {key}" for key in [*dict(pairs), "RINGAR_KERNELS"]),
        quads="80 * 1024 / sizeof(Quad)",
        entries="".join(_ENTRY.format(name=name, kernel=kernel) for kernel in KERNELS),
    )


class Array(np.ndarray):
    """A NumPy array that is on a device."""

    device_id = 0

    @property
    def device(self) -> Any:
        return _Device(self.device_id)


class _Device:
    def __init__(self, number: int) -> None:
        self.id = number
        self.attributes = {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": 227 * 1024}

    def __enter__(self) -> _Device:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id


class HostCupy:
    """What `import cupy` gives.

    Args:
        compiled: the kernels that there are; None: there are none.
    """

    ndarray = Array
    matmul = staticmethod(np.matmul)

    def __init__(self, compiled: Compiled | None = None, devices: int = 1) -> None:
        self.compiled = compiled
        self.order = 0
        self.launched: list[str] = []
        self._guarded: list[np.ndarray] = []
        runtime = SimpleNamespace(getDeviceCount=lambda: devices, CUDARuntimeError=RuntimeError)
        self.cuda = SimpleNamespace(runtime=runtime, Device=_Device)

    def asarray(self, array: Any) -> Any:
        return np.asarray(array).view(Array)

    def ascontiguousarray(self, array: Any) -> Any:
        return np.ascontiguousarray(array).view(Array)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """NaN, between guards."""
        size = int(np.prod(shape))
        block = np.full(size + 2 * GUARD, np.nan, dtype)
        block[:GUARD] = block[GUARD + size :] = 12345
        self._guarded.append(block)
        return block[GUARD : GUARD + size].reshape(shape).view(Array)

    def check_guards(self) -> None:
        """Nothing was written outside of arrays."""
        for block in self._guarded:
            assert (block[:GUARD] == 12345).all()
            assert (block[-GUARD:] == 12345).all()
        self._guarded.clear()

    def RawModule(self, *, code: str, options: tuple[str, ...]) -> Any:
        assert self.compiled is not None
        library, unit = self.compiled.units[options]
        return SimpleNamespace(
            get_function=lambda kernel: _Function(
                self, getattr(library, f"{unit}_{kernel}"), kernel
            )
        )


class _Function:
    """A kernel; arguments are taken as CuPy takes them, by the sizes of their dtypes."""

    max_dynamic_shared_size_bytes = 48 * 1024

    def __init__(self, cupy: HostCupy, entry: Any, name: str) -> None:
        self._cupy = cupy
        self._entry = entry
        self._entry.restype = ctypes.c_char_p
        self._name = name

    def __call__(
        self, grid: tuple[int], block: tuple[int], args: Iterable[Any], *, shared_mem: int = 0
    ) -> None:
        assert shared_mem <= self.max_dynamic_shared_size_bytes
        assert 0 < grid[0] < 2**31
        self._cupy.launched.append(self._name)
        values, sizes = [], []
        for argument in args:
            if isinstance(argument, np.ndarray):
                assert argument.flags.c_contiguous
                values.append(argument.ctypes.data)
                sizes.append(8)
            else:
                assert isinstance(argument, np.generic)
                values.append(int(argument) % 2**64)
                sizes.append(argument.dtype.itemsize)
        count = len(values)
        error = self._entry(
            ctypes.c_uint(grid[0]), ctypes.c_uint(block[0]), ctypes.c_size_t(shared_mem), count,
            (ctypes.c_uint64 * count)(*values), (ctypes.c_int * count)(*sizes), self._cupy.order,
        )  # fmt: skip
        assert error is None, error.decode()
