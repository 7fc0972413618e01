"""Ranks on several hosts that cannot start together, and what ringar.init() tells each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import ringar
from ringar import mpi
from tests.faults.job import RANK, SIZE, attempt, say, wait_for, works

LAST = SIZE - 1


@contextmanager
def of_the_last(name: str, value: str) -> Iterator[None]:
    """An environment variable that only the last rank has."""
    with mock.patch.dict(os.environ, {name: value} if RANK == LAST else {}):
        yield


def init() -> None:
    ringar.init(deadline=30, start_timeout=20)


def main() -> None:
    with of_the_last("RINGAR_TUNING", "piece=32000"):
        attempt("tuning", init)
    with of_the_last(mpi.ALGORITHM_VARIABLE, "ring"):
        attempt("algorithm", init)
    with mock.patch.object(mpi, "__version__", "0.0.1" if RANK == LAST else "0.0.2"):
        attempt("version", init)
    with mock.patch.dict(os.environ, RINGAR_COST_MODEL="/no/such/file"):
        attempt("cost model", init)
    with mock.patch.dict(os.environ, {mpi.ALGORITHM_VARIABLE: "tree"}):
        attempt("unknown algorithm", init)
    attempt("init", init)
    attempt("works", works)
    ringar.shutdown()
    if RANK == LAST:
        for rank in range(LAST):
            wait_for(f"{rank} has given up")
    else:
        attempt("absent", lambda: ringar.init(start_timeout=2))
        say(f"{RANK} has given up")


if __name__ == "__main__":
    main()
