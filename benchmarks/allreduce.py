"""How long does an allreduce take, against other libraries and against a plain memcpy?

    python -m benchmarks.allreduce -np 2
    python -m benchmarks.allreduce -np 4 --peers ringar_engine,openmpi --sizes 64M
    python -m benchmarks.allreduce --device gpu

Peers are run in turn, several rounds of each, so that a noisy minute hits all of them. Every result
is checked in the run that is timed; a wrong element makes the exit code 1. The table has the form
of nccl-tests: algbw = bytes / time, busbw = algbw * 2 (n-1)/n, the rate at which a rank's link, or
its memory, must move bytes whatever the number of ranks. For the other collectives there is
`python -m benchmarks.collectives`.
"""

from __future__ import annotations

import sys

from benchmarks.collectives import __main__ as collectives


def main(arguments: list[str] | None = None) -> int:
    return collectives.main(arguments, program="benchmarks.allreduce", about=__doc__)


if __name__ == "__main__":
    sys.exit(main())
