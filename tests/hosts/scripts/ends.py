"""Rank 1 ends, in the way that the first argument names; the second one: where the others are.

The third argument is a file that it leaves open.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

atexit.register(lambda: print("a handler from before the import", flush=True))

import numpy as np  # noqa: E402

import ringar  # noqa: E402

CULPRIT = 1


def end(how: str) -> None:
    if how == "exception":
        raise ValueError("an error in the program")
    if how == "sys.exit":
        print("it ends by sys.exit", file=sys.stderr)
        sys.exit(3)
    if how == "os._exit":
        print("it ends by os._exit", file=sys.stderr, flush=True)
        os._exit(3)


def main(how: str, where: str) -> None:
    ringar.init(deadline=30)
    ringar.allreduce(np.ones(4, np.float32))
    print(f"ready: rank {ringar.rank()} of {ringar.size()}", flush=True)
    if ringar.rank() == CULPRIT:
        time.sleep(0.5)  # by now the others are inside
        end(how)
    if where == "outside":
        time.sleep(3)
    ringar.allreduce(np.ones(4, np.float32), name="without it")


if __name__ == "__main__":
    if len(sys.argv) > 3:
        file = open(sys.argv[3], "w")  # noqa: SIM115
        file.write("not flushed")
    main(*sys.argv[1:3])
