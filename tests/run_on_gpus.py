"""Runs the tests that need GPUs on those that there are: ``python -m tests.run_on_gpus``.

With ``--check`` it only says whether there are any. What is run is a plan, made from the number of
GPUs and the version of NCCL alone.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import sys
from dataclasses import dataclass, field

from ringar.job import nvidia
from tests.plugin import run_job

ALL, COLLECTIVES = "tests/cupy", "tests/cupy/collectives"
MOST_RANKS = 4
MULTI_RANK = (2, 30)
"""From this version on NCCL can have several ranks on one GPU, if it is told to."""
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
"""The environment of ranks that share a GPU: NCCL allows it, TensorFlow leaves memory to others."""
LIMIT = 600.0
"""Seconds for each run."""


@dataclass(frozen=True)
class Run:
    """Tests on a number of ranks; one rank is plain pytest.

    Attributes:
        left_out: why it is not run, if it is not.
    """

    ranks: int
    path: str
    environment: dict[str, str] = field(default_factory=dict)
    left_out: str = ""

    def __str__(self) -> str:
        settings = "".join(f", {name}={value}" for name, value in self.environment.items())
        ending = f": left out, {self.left_out}" if self.left_out else ""
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{self.path} on {ranks}{settings}{ending}"


def plan(gpus: int, nccl: tuple[int, int] | None) -> list[Run]:
    """What to run.

    Args:
        gpus: how many there are.
        nccl: the first two numbers of its version; None: there is none.
    """
    if gpus == 0:
        return []
    single = Run(1, ALL)
    if gpus > 1:
        return [single, Run(min(gpus, MOST_RANKS), COLLECTIVES)]
    left_out = ""
    if nccl is None or nccl < MULTI_RANK:
        version = "none" if nccl is None else "{}.{}".format(*nccl)
        least = "{}.{}".format(*MULTI_RANK)
        left_out = f"since two ranks on one GPU need NCCL {least}, and there is {version}"
    return [single, Run(2, COLLECTIVES, SHARED, left_out)]


def count_gpus() -> tuple[int, str]:
    """How many GPUs CUDA's driver sees, and why none."""
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL(nvidia.cuda_library() or "libcuda.so.1")
        code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    except (OSError, AttributeError) as error:
        return 0, str(error)
    return count.value, f"CUDA's driver answers with error {code}" if code else ""


def nccl_version() -> tuple[int, int] | None:
    """Of the NCCL that ringar opens."""
    version = ctypes.c_int()
    try:
        library = ctypes.CDLL(nvidia.nccl_library() or "libnccl.so.2")
        code = library.ncclGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    number = version.value  # 22703 is 2.27.3
    return None if code else (number // 10_000, number % 10_000 // 100)


def has_passed(code: int | None, output: str) -> bool:
    """Whether tests ran and none failed: if all are skipped, pytest ends with 0, too."""
    return code == 0 and re.search(r"\b[1-9]\d* passed\b", output) is not None


def settings() -> dict[str, str]:
    """The user's settings of ringar, and that tests use the real GPU."""
    names = [name for name in os.environ if name.startswith("RINGAR_")]
    return {**{name: os.environ[name] for name in names}, "RINGAR_TEST_GPU": "1"}


def execute(run: Run) -> bool:
    """Runs it, and shows its output at its end."""
    result = run_job(
        run.ranks if run.ranks > 1 else None,
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", run.path],
        launcher_args=["--no-prefix"],
        deadline=LIMIT,
        env={**settings(), **run.environment},
    )
    print(result, flush=True)
    return has_passed(result.code, result.stdout) and not result.leftovers


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run_on_gpus", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether there is a GPU")
    options = parser.parse_args(arguments)
    gpus, why = count_gpus()
    if gpus == 0:
        print(f"no GPU{f': {why}' if why else ''}", file=sys.stderr)
        return 1
    print(f"{gpus} GPUs")
    if options.check:
        return 0
    runs = plan(gpus, nccl_version())
    failed = []
    for run in runs:
        print(f"== {run}", flush=True)
        if not run.left_out and not execute(run):
            failed.append(run)
    for run in failed:
        print(f"failed, or no test ran: {run}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
