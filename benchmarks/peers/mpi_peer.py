"""The peer of all MPI libraries; the environment decides which one it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.definitions import ROOT_RANK

Run = Callable[[], np.ndarray]


class Peer:
    def __init__(self) -> None:
        from mpi4py import MPI

        self._sum = MPI.SUM
        self._world = MPI.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        self.version = MPI.Get_library_version().split("\n")[0].split(",")[0]

    def barrier(self) -> None:
        self._world.Barrier()

    def _run(self, function: Any, array: np.ndarray, elements: int, **options: Any) -> Run:
        result = np.empty(elements, array.dtype)

        def run() -> np.ndarray:
            function(array, result, **options)
            return result

        return run

    def allreduce(self, array: np.ndarray) -> Run:
        return self._run(self._world.Allreduce, array, array.size, op=self._sum)

    def allgather(self, array: np.ndarray) -> Run:
        return self._run(self._world.Allgather, array, array.size * self.size)

    def reducescatter(self, array: np.ndarray) -> Run:
        function, share = self._world.Reduce_scatter_block, array.size // self.size
        return self._run(function, array, share, op=self._sum)

    def broadcast(self, array: np.ndarray) -> Run:
        # In place: the root sends what the others receive.
        result = array if self.rank == ROOT_RANK else np.empty_like(array)

        def run() -> np.ndarray:
            self._world.Bcast(result, root=ROOT_RANK)
            return result

        return run

    def alltoall(self, array: np.ndarray) -> Run:
        return self._run(self._world.Alltoall, array, array.size)
