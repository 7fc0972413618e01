"""Adds two NumPy arrays: `python -m benchmarks.quick.start_worker OPTIONS`.

Reports the moment after it, and what the rank then has: memory that it shares with no other
process, sockets and threads.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import numpy as np

from benchmarks.harness.worker import read_options, write_report


def private_bytes() -> int:
    """Returns the memory of this process that no other one has, too."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * sum(
        int(kib) for kib in re.findall(r"^Private_\w+: +(\d+) kB", text, re.MULTILINE)
    )


def sockets() -> int:
    """Counts the open sockets of this process."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            count += os.readlink(descriptor).startswith("socket:")
        except FileNotFoundError:  # that of this loop
            continue
    return count


def main() -> None:
    options = read_options()
    import ringar

    ringar.init()
    total = ringar.allreduce(np.ones(2), ringar.Sum)
    moment = time.perf_counter()
    assert total[0] == ringar.size()
    write_report(
        options,
        ringar.rank(),
        {
            "moment": moment,
            "private_bytes": private_bytes(),
            "sockets": sockets(),
            "threads": len(os.listdir("/proc/self/task")),
        },
    )


if __name__ == "__main__":
    main()
