"""Ranks on several hosts that cannot start together, and what ringar.init() tells each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from mpi4py import MPI

import ringar
from ringar import cost_model
from ringar.job import mpi, native, place
from tests.faults.job import RANK, SIZE, attempt, folder, say, wait_for, works

LAST = SIZE - 1


@contextmanager
def of_the_last(name: str, value: str) -> Iterator[None]:
    """An environment variable that only the last rank has."""
    with mock.patch.dict(os.environ, {name: value} if RANK == LAST else {}):
        yield


def init() -> None:
    ringar.init(deadline=30, start_timeout=20)


def open_without_shared_memory(path: str, *args: Any, **options: Any) -> int:
    """`os.open` in a container with a /dev/shm of its own."""
    if str(path).startswith("/dev/shm/ringar"):
        raise FileNotFoundError(2, "No such file or directory", path)
    return os_open(path, *args, **options)


os_open = os.open


def of_the_last_call(module: Any, name: str, function: Any) -> Any:
    """A function that the last rank has in the place of another one."""
    return mock.patch.object(module, name, function if RANK == LAST else getattr(module, name))


def cannot_load() -> None:
    raise ImportError("expected the native library")


def cannot_map(*_: Any) -> int:
    return 8  # out of memory; the text is of no interest


def same_generation() -> None:
    """Ranks that have counted differently agree, on a number that no one of them has had."""
    mpi._generation = 70 + RANK
    init()
    generations = ringar.allgather(np.array([place.require("this").generation]))
    ringar.shutdown()
    np.testing.assert_array_equal(generations, np.full(SIZE, 70 + LAST + 1))


def resources() -> tuple[int, int]:
    """Files that this process has open, and bytes of its host's shared memory."""
    MPI.COMM_WORLD.Barrier()  # the other rank of this host may still have to leave
    memory = os.statvfs("/dev/shm")
    return len(os.listdir("/proc/self/fd")), (memory.f_blocks - memory.f_bfree) * memory.f_frsize


def again_and_again() -> None:
    parameters = cost_model.Parameters(1e-4, 1e8, 1e9, 1e-6, 1e10)
    if RANK == 0:
        cost_model.save(folder() / "model.json", parameters)
    before = resources()
    with mock.patch.dict(os.environ, {cost_model.VARIABLE: str(folder() / "model.json")}):
        for _ in range(20):
            init()
            works()
            ringar.shutdown()
    after = resources()
    assert after == before, f"files and bytes: {before} before, {after} after"


def main() -> None:
    native.library()  # which takes seconds, and more of them where other tests run
    MPI.COMM_WORLD.Barrier()
    with of_the_last("RINGAR_TUNING", "chunk=32000"):
        attempt("tuning", init)
    with of_the_last(mpi.ALGORITHM_VARIABLE, "ring"):
        attempt("algorithm", init)
    with mock.patch.object(mpi, "__version__", "0.0.1" if RANK == LAST else "0.0.2"):
        attempt("version", init)
    with mock.patch.dict(os.environ, RINGAR_COST_MODEL="/no/such/file"):
        attempt("cost model", init)
    with mock.patch.dict(os.environ, {mpi.ALGORITHM_VARIABLE: "tree"}):
        attempt("unknown algorithm", init)
    with of_the_last_call(os, "open", open_without_shared_memory):
        attempt("shared memory", init)
    with of_the_last_call(native, "library", cannot_load):
        attempt("library", init)
    with of_the_last_call(native.library(), "ringar_init", cannot_map):
        attempt("native start", lambda: ringar.init(deadline=30, start_timeout=2))
    attempt("init", init)
    attempt("works", works)
    ringar.shutdown()
    attempt("generation", same_generation)
    attempt("again and again", again_and_again)
    if RANK == LAST:
        for rank in range(LAST):
            wait_for(f"{rank} has given up")
    else:
        attempt("absent", lambda: ringar.init(start_timeout=2))
        say(f"{RANK} has given up")


if __name__ == "__main__":
    main()
