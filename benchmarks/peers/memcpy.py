"""The physical bound: all ranks at once copy as many bytes as the size says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.peers.ringar_peer import REQUIREMENTS, RingarPeer, command  # noqa: F401

TITLE = "memcpy on all ranks at once"
COMMUNICATES = False


class Peer(RingarPeer):
    def allreduce(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        result = np.empty_like(array)

        def run() -> np.ndarray:
            np.copyto(result, array)
            return result

        return run

    reducescatter = broadcast = alltoall = allreduce

    def allgather(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        return self.allreduce(np.tile(array, self.size))
