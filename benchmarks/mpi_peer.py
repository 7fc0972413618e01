"""The peer that both MPI libraries share; which one it is, the environment decides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class Peer:
    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        self.version = MPI.Get_library_version().split("\n")[0].split(",")[0]

    def barrier(self) -> None:
        self._world.Barrier()

    def allreduce(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        result = np.empty_like(array)

        def run() -> np.ndarray:
            self._world.Allreduce(array, result, op=self._mpi.SUM)
            return result

        return run
