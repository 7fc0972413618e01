"""What the ranks of a job send between hosts, for scripts of scenarios."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ringar
from tests.faults.job import record

TOTAL_BYTES = 16 << 20


def sent_bytes() -> int:
    """What this host has sent to the others: the counter of its interface."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return sum(int(line.split()[9]) for line in lines if line.strip().startswith("eth0:"))


def bytes_between_hosts(
    algorithm: str | None, nbytes: int = 4 << 20, **options: Any
) -> Callable[[], None]:
    """Writes down what a host sends for each byte that is reduced, in arrays of `nbytes`."""

    def run() -> None:
        array, calls = np.ones(nbytes // 4, np.float32), TOTAL_BYTES // nbytes
        ringar.allreduce(array, algorithm=algorithm, **options)
        ratios = []
        for _ in range(3):  # the least: where cores are short, TCP sends some segments twice
            ringar.barrier()
            before = sent_bytes()
            ringar.barrier()  # nobody sends before all have looked
            for _ in range(calls):
                ringar.allreduce(array, algorithm=algorithm, **options)
            ringar.barrier()
            ratios.append((sent_bytes() - before) / (calls * nbytes))
        name = f"sent, {algorithm or 'auto'}{', narrow' if options else ''}"
        record(name, kinds=[], message=repr(min(ratios)), seconds=0.0)

    return run
