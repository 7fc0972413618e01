"""A first collective on a card whose memory is full: an error that says so, and the job ends.

ringarrun -np 2 python -m tests.gpu_report.full_card
"""

from __future__ import annotations

import contextlib

import cupy

import ringar
from ringar.errors import RingarError

LEAST = 1 << 20


def main() -> None:
    ringar.init()
    blocks = []
    step = cupy.cuda.runtime.memGetInfo()[0]
    while step >= LEAST:
        with contextlib.suppress(cupy.cuda.memory.OutOfMemoryError):
            blocks.append(cupy.cuda.alloc(step))
            continue
        step //= 2
    try:
        array = cupy.ndarray((4,), memptr=blocks[-1])
        ringar.cupy.allreduce(array, ringar.Sum, out=array)
        ringar.cupy.synchronize()
    except RingarError as error:
        text = str(error)
    else:
        text = "no error: NCCL needs no further memory"
    assert "memory" in text, f"expected an error about memory, received {text}"
    print(f"refused: {text.splitlines()[0][:120]}")


if __name__ == "__main__":
    main()
