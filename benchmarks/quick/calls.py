"""Small collectives of ringar and mpi4py, in turns: `python -m benchmarks.quick.calls OPTIONS`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.worker import read_options, write_report

CALLS = 200
"""Calls of a turn, whose mean counts."""


def main() -> None:
    options = read_options()
    from mpi4py import MPI

    import ringar

    ringar.init()
    world, ranks = MPI.COMM_WORLD, ringar.size()
    results = []
    for size in options["sizes"]:
        for name, ways in cases(world, ranks, size).items():
            times: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(options["rounds"]):
                for way, call in ways.items():
                    world.Barrier()
                    start = time.perf_counter()
                    for _ in range(CALLS):
                        call()
                    times[way].append((time.perf_counter() - start) / CALLS)
            results.append([name, size, times])
    write_report(options, ringar.rank(), {"results": results})


def cases(world: Any, ranks: int, size: int) -> dict[str, dict[str, Callable[[], Any]]]:
    """Returns the ways of each collective of `size` bytes, after a check of their results."""
    import tensorflow as tf

    import ringar

    array = np.ones(size // 4, np.float32)
    total, everyone = np.empty_like(array), np.empty(ranks * array.size, np.float32)
    copy, tensor = array.copy(), tf.constant(array)
    ways: dict[str, dict[str, Callable[[], Any]]] = {
        "allreduce": {
            "mpi4py": lambda: world.Allreduce(array, total),
            "NumPy": lambda: ringar.allreduce(array, ringar.Sum),
            "eager tensor": lambda: ringar.allreduce(tensor, ringar.Sum),
        },
        "allgather": {
            "mpi4py": lambda: world.Allgather(array, everyone),
            "NumPy": lambda: ringar.allgather(array),
            "eager tensor": lambda: ringar.allgather(tensor),
        },
        "broadcast": {
            "mpi4py": lambda: world.Bcast(copy, 0),
            "NumPy": lambda: ringar.broadcast(array),
            "eager tensor": lambda: ringar.broadcast(tensor),
        },
        "barrier": {"mpi4py": world.Barrier, "NumPy": ringar.barrier},
    }
    for name, expected in (("allreduce", ranks * array), ("allgather", np.ones(everyone.size))):
        for way in ("NumPy", "eager tensor"):
            np.testing.assert_array_equal(ways[name][way](), expected)
    return ways


if __name__ == "__main__":
    main()
