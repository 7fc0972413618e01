"""ringar's engine, called with NumPy arrays: no TensorFlow op in between."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import ringar
from benchmarks.launch import ringarrun as command  # noqa: F401
from ringar import native
from ringar.collectives.call import Call

TITLE = "ringar (engine)"
REQUIREMENTS: tuple[str, ...] = ()


class Peer:
    def __init__(self) -> None:
        ringar.init()
        self.rank, self.size = ringar.rank(), ringar.size()

    def barrier(self) -> None:
        ringar.barrier()

    def allreduce(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        call = native.Prepared(
            Call("allreduce", op="sum").spec(array.dtype.name), [array], [np.empty_like(array)]
        )
        result = call.outputs[0]

        def run() -> np.ndarray:
            call.run()
            return result

        return run
