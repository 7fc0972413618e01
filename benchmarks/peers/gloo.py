"""Gloo's allreduce through PyTorch's torch.distributed (CPU)."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from benchmarks.launch import plain as command  # noqa: F401

TITLE = "Gloo (PyTorch)"
REQUIREMENTS = ("numpy", "torch==2.13.0")


class Peer:
    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._torch, self._dist = torch, dist
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.version = f"torch {torch.__version__}"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    def barrier(self) -> None:
        self._dist.barrier()

    def allreduce(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        source = self._torch.from_numpy(array)
        result = self._torch.empty_like(source)

        def run() -> np.ndarray:
            # In place only: without this copy the sum would grow with every call.
            result.copy_(source)
            self._dist.all_reduce(result)
            return result.numpy()

        return run
