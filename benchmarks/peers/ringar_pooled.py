"""ringar's engine with arrays in memory that all ranks of the host share.

Of an allreduce the result lies there, of the other collectives the input.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import ringar
from benchmarks.peers import ringar_engine
from benchmarks.peers.ringar_peer import REQUIREMENTS, command, in_engine  # noqa: F401

TITLE = "ringar (engine, arrays in the pool)"
Run = Callable[[], np.ndarray]


def _in_pool(array: np.ndarray) -> np.ndarray:
    pooled = ringar.empty(array.shape, array.dtype)
    pooled[:] = array
    return pooled


class Peer(ringar_engine.Peer):
    def allreduce(self, array: np.ndarray) -> Run:
        result = ringar.empty(array.shape, array.dtype)
        return in_engine([array], [result], result, "allreduce")

    def allgather(self, array: np.ndarray) -> Run:
        return super().allgather(_in_pool(array))

    def reducescatter(self, array: np.ndarray) -> Run:
        return super().reducescatter(_in_pool(array))

    def broadcast(self, array: np.ndarray) -> Run:
        return super().broadcast(_in_pool(array))

    def alltoall(self, array: np.ndarray) -> Run:
        return super().alltoall(_in_pool(array))
