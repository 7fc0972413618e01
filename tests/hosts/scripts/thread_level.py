"""A script that has initialized MPI with a level of thread support of its own choice."""

from __future__ import annotations

import sys
import warnings

import mpi4py

mpi4py.rc.thread_level = sys.argv[2]

import ringar  # noqa: E402
from tests.faults.job import attempt, works  # noqa: E402


def init() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ringar.init(deadline=30)


def main() -> None:
    attempt("strict", init)  # a warning is an error
    if sys.argv[2] == "serialized":
        ringar.init(deadline=30)
        attempt("works", works)


if __name__ == "__main__":
    main()
