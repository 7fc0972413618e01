"""ringar's engine, called with NumPy arrays: no TensorFlow op in between."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.harness.definitions import ROOT_RANK
from benchmarks.peers.ringar_peer import REQUIREMENTS, RingarPeer, command, in_engine  # noqa: F401

TITLE = "ringar (engine)"
Run = Callable[[], np.ndarray]


def _run(collective: str, array: np.ndarray, elements: int, root: int = 0) -> Run:
    result = np.empty(elements, array.dtype)
    return in_engine([array], [result], result, collective, root=root)


class Peer(RingarPeer):
    def allreduce(self, array: np.ndarray) -> Run:
        return _run("allreduce", array, array.size)

    def allgather(self, array: np.ndarray) -> Run:
        return _run("allgather", array, array.size * self.size)

    def reducescatter(self, array: np.ndarray) -> Run:
        return _run("reducescatter", array, array.size // self.size)

    def broadcast(self, array: np.ndarray) -> Run:
        return _run("broadcast", array, array.size, ROOT_RANK)

    def alltoall(self, array: np.ndarray) -> Run:
        return _run("alltoall", array, array.size)
