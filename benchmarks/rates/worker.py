"""Copies on one of two cores: `python -m benchmarks.rates.worker OPTIONS`.

The two processes take turns on a block that they share: rank 0 writes it after rank 1 has read it,
and rank 1 reads it after rank 0 has written it. The copies are timed, the waits for a turn are not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.worker import read_options, write_report

DEADLINE = 60.0
"""Seconds to wait for a turn."""


def shared_array(path: Path, size: int) -> np.ndarray:
    """Returns `size` bytes that all processes with this path share."""
    with path.open("a+b") as file:
        os.ftruncate(file.fileno(), size)
    return np.memmap(path, np.uint8, "r+", shape=(size,))


def wait_for(turns: np.ndarray, turn: int) -> None:
    """Polls until the other process has had its turn."""
    give_up = time.monotonic() + DEADLINE
    while turns[0] < turn:
        if time.monotonic() > give_up:
            raise TimeoutError(f"expected turn {turn} within {DEADLINE:g} s, is at {turns[0]}")


def seconds_of(run: Callable[[], Any]) -> float:
    """Returns the seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    options = read_options()
    rank, size, rounds = int(os.environ["RANK"]), options["bytes"], options["rounds"]
    block = shared_array(Path(options["folder"], "block"), size)
    turns = shared_array(Path(options["folder"], "turns"), 64).view(np.int64)
    ones, zeros = np.ones(size, np.uint8), np.zeros(size, np.uint8)

    solo = [seconds_of(lambda: np.copyto(zeros, ones)) for _ in range(rounds)]
    source, target = (ones, block) if rank == 0 else (block, ones)
    together = []
    for turn in range(rank, 2 * rounds, 2):
        wait_for(turns, turn)
        together.append(seconds_of(lambda: np.copyto(target, source)))
        turns[0] = turn + 1
    write_report(options, rank, {"alone": median(solo), "together": median(together)})


if __name__ == "__main__":
    main()
