"""What there is of NVIDIA on this machine, found without opening any of it.

Imports neither TensorFlow nor CuPy, and starts no CUDA: the launcher asks here, too.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path

CUDA_LIBRARY_VARIABLE = "RINGAR_CUDA_LIBRARY"
NCCL_LIBRARY_VARIABLE = "RINGAR_NCCL_LIBRARY"

#: Which GPUs a process may use, as CUDA reads it: numbers or UUIDs, separated by commas.
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"

_DRIVER = Path("/proc/driver/nvidia")
_DEVICES = Path("/dev")
_ENTRY = re.compile(r"\d+|(GPU|MIG)-\S+")


def cuda_library(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the file of the CUDA driver to open; None for the system's libcuda.so.1.

    The file need not exist. Whoever opens it says so, when the first collective on a GPU comes.
    """
    return environ.get(CUDA_LIBRARY_VARIABLE) or None


def nccl_library(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the file of NCCL to open; None: libnccl.so.2, where the system's loader finds it.

    It is the one that RINGAR_NCCL_LIBRARY names, which need not exist, or that of the PyPI packages
    nvidia-nccl-cu12 and nvidia-nccl-cu13, which use the same place.
    """
    if path := environ.get(NCCL_LIBRARY_VARIABLE):
        return path
    spec = importlib.util.find_spec("nvidia")  # a namespace, which several packages share
    for folder in (spec.submodule_search_locations if spec else None) or ():
        if (library := Path(folder) / "nccl/lib/libnccl.so.2").is_file():
            return str(library)
    return None


def has_driver() -> bool:
    """Return whether NVIDIA's driver is loaded in the kernel, and this process can reach it."""
    return _DRIVER.is_dir() or (_DEVICES / "nvidiactl").exists()


def visible_gpus(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the GPUs that this environment allows, as CUDA_VISIBLE_DEVICES names them.

    As CUDA does, this takes what stands before the first entry that names no GPU: a scheduler hides
    all of them with "", "-1" or "NoDevFiles". Without the variable they are counted from 0.
    """
    text = environ.get(VISIBLE_VARIABLE)
    if text is None:
        return tuple(str(number) for number in range(_count()))
    entries = []
    for entry in map(str.strip, text.split(",")):
        if not _ENTRY.fullmatch(entry):
            break
        entries.append(entry)
    return tuple(entries)


def _count() -> int:
    """Return how many GPUs this process can reach."""
    folders = sum(1 for _ in _DRIVER.glob("gpus/*"))
    files = sum(1 for path in _DEVICES.glob("nvidia[0-9]*") if path.name[6:].isdecimal())
    # A container may have the files of its own GPUs only, and see the folders of all; the files are
    # made when CUDA is first used, so that they may all be missing.
    return min(folders, files) if folders and files else folders or files
