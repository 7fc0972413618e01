"""Builds the stand-in for the CUDA driver and NCCL; `gpu/standin.h` says what it is."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).resolve().parent / "gpu"
INCLUDE = ROOT / "tf_ops"
ABIS = (INCLUDE / "links" / "cuda_abi.h", INCLUDE / "links" / "nccl_abi.h")
FLAGS = ("-std=c++17", "-Wall", "-Wextra", "-fPIC", "-O1", f"-I{INCLUDE}")
AT_ONCE = 2
"""Compilers; tests are to leave a machine of two cores usable."""


def build(folder: Path, flags: Sequence[str] = ()) -> Path:
    """Compiles the library and returns its path.

    Several processes may do so at once: one of them builds, the others wait for it. What was built
    from the same sources before is not built again.

    Args:
        folder: where the library is to be; it is made if need be.
        flags: further ones, such as `-fsanitize=thread`.
    """
    compiler = os.environ.get("CXX", "g++")
    digest = hashlib.sha256(repr((compiler, FLAGS, tuple(flags))).encode())
    sources = sorted(SOURCES.glob("*.cc"))
    for file in (*sources, *sorted(SOURCES.glob("*.h")), *ABIS):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"libringar_gpu_standin-{digest.hexdigest()[:16]}.so"
    with (folder / "gpu_standin.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(compiler, flags, sources, library)
    return library


def _compile(compiler: str, flags: Sequence[str], sources: list[Path], library: Path) -> None:
    deadline = time.monotonic() + 110
    objects = [library.with_suffix(f".{source.stem}.o") for source in sources]
    unfinished = library.with_suffix(".tmp")

    def run(*words: str | Path) -> None:
        left = max(deadline - time.monotonic(), 1)
        command = [compiler, *FLAGS, *flags, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=left, check=False)
        if done.returncode:
            raise RuntimeError(f"the GPU stand-in does not build:\n{done.stdout}{done.stderr}")

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda source, to: run("-c", source, "-o", to), sources, objects))
        run("-shared", *objects, "-o", unfinished, "-lpthread", "-lrt", "-ldl")
        unfinished.rename(library)
    finally:
        for file in (*objects, unfinished):
            file.unlink(missing_ok=True)
