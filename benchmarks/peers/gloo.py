"""Gloo through PyTorch's torch.distributed.

The build for CPUs alone is a twentieth of the one with CUDA, and lies in PyTorch's own index: where
pip does not look there, name that in PIP_EXTRA_INDEX_URL.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable

import numpy as np

from benchmarks.harness.definitions import ROOT_RANK
from benchmarks.harness.launch import plain as command  # noqa: F401

TITLE = "Gloo (PyTorch)"
REQUIREMENTS = ("numpy", "torch==2.13.0+cpu")
Run = Callable[[], np.ndarray]


class Peer:
    def __init__(self) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._torch, self._dist = torch, dist
        dist.init_process_group("gloo")
        # Else its threads are still there when Python ends, which often aborts the process.
        atexit.register(dist.destroy_process_group)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.version = f"torch {torch.__version__}"

    def barrier(self) -> None:
        self._dist.barrier()

    def allreduce(self, array: np.ndarray) -> Run:
        source = self._torch.from_numpy(array)
        result = self._torch.empty_like(source)

        def run() -> np.ndarray:
            # In place only: without this copy the sum would grow with every call.
            result.copy_(source)
            self._dist.all_reduce(result)
            return result.numpy()

        return run

    def _run(self, function: Callable[..., object], array: np.ndarray, elements: int) -> Run:
        source = self._torch.from_numpy(array)
        result = self._torch.empty(elements, dtype=source.dtype)

        def run() -> np.ndarray:
            function(result, source)
            return result.numpy()

        return run

    def allgather(self, array: np.ndarray) -> Run:
        return self._run(self._dist.all_gather_into_tensor, array, array.size * self.size)

    def reducescatter(self, array: np.ndarray) -> Run:
        return self._run(self._dist.reduce_scatter_tensor, array, array.size // self.size)

    def broadcast(self, array: np.ndarray) -> Run:
        # In place: the root sends what the others receive.
        result = self._torch.from_numpy(array if self.rank == ROOT_RANK else np.empty_like(array))

        def run() -> np.ndarray:
            self._dist.broadcast(result, ROOT_RANK)
            return result.numpy()

        return run

    def alltoall(self, array: np.ndarray) -> Run:
        return self._run(self._dist.all_to_all_single, array, array.size)
