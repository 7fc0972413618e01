"""Measures a peer on one rank: `python -m benchmarks.collectives.worker OPTIONS`.

Needs only NumPy and the peer. Every result is checked before and after it is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.harness.definitions import DEFINITIONS, input_of
from benchmarks.harness.worker import read_options, write_report


def time_calls(run: Callable[[], Any], calls: int) -> list[float]:
    """Returns the seconds of each of `calls` calls."""
    clock = time.perf_counter
    times = []
    for _ in range(calls):
        start = clock()
        run()
        times.append(clock() - start)
    return times


def calls_for(size: int, budget_bytes: int) -> int:
    """Returns how often to repeat: often for small sizes, a few times for large ones."""
    return max(7, min(400, budget_bytes // max(size, 1)))


def wrong_elements(run: Callable[[], Any], array: np.ndarray, expected: np.ndarray) -> int:
    """Counts wrong elements of a call on `array`; a result of another shape is all wrong."""
    result = np.asarray(run())
    if result.shape != expected.shape:
        return expected.size
    errors = int(np.count_nonzero(result != expected))
    if result.flags.writeable and not np.may_share_memory(result, array):
        result.fill(-1)  # elements that a later call leaves unchanged must be wrong
    return errors


def measure(
    peer: Any,
    collective: str,
    size: int,
    communicates: bool,
    budget_bytes: int,
    in_place: bool = False,
) -> dict[str, Any]:
    """Times a collective of `size` bytes of float32 and counts wrong elements."""
    definition = DEFINITIONS[collective]
    total = definition.elements(size, peer.size)
    array = input_of(collective, total, peer.rank, peer.size)
    run = getattr(peer, collective)(array)
    expected = definition.expected(total, peer.rank, peer.size)

    def count_errors() -> int:
        if in_place:
            array[:] = input_of(collective, total, peer.rank, peer.size)
        return wrong_elements(run, array, expected) if communicates else 0

    errors = count_errors()
    calls = calls_for(size, budget_bytes)
    time_calls(run, max(2, calls // 5))
    peer.barrier()
    times = time_calls(run, calls)
    return {"size": size, "times": times, "wrong": errors + count_errors()}


def main() -> None:
    options = read_options()
    module = peers.load(options["peer"])
    peer = module.Peer()
    communicates = getattr(module, "COMMUNICATES", True)
    in_place = getattr(module, "IN_PLACE", False)
    collective, budget = options["collective"], options["budget_bytes"]
    results = [
        measure(peer, collective, size, communicates, budget, in_place) for size in options["sizes"]
    ]
    report = {"rank": peer.rank, "version": getattr(peer, "version", ""), "results": results}
    write_report(options, peer.rank, report)
    peer.barrier()


if __name__ == "__main__":
    main()
