"""Horovod in a tf.function, where Horovod is installed beside TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.definitions import ROOT_RANK
from benchmarks.harness.launch import horovodrun as command  # noqa: F401
from benchmarks.harness.traced import in_function

TITLE = "Horovod"
REQUIREMENTS: tuple[str, ...] = ()
Run = Callable[[], Any]


class Peer:
    def __init__(self) -> None:
        import horovod
        import horovod.tensorflow as hvd

        hvd.init()
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.version = f"horovod {horovod.__version__}"

    def barrier(self) -> None:
        self._hvd.barrier()

    def allreduce(self, array: np.ndarray) -> Run:
        return in_function(lambda x: self._hvd.allreduce(x, op=self._hvd.Sum), array)

    def allgather(self, array: np.ndarray) -> Run:
        return in_function(lambda x: self._hvd.allgather(x), array)

    def reducescatter(self, array: np.ndarray) -> Run:
        return in_function(lambda x: self._hvd.reducescatter(x, op=self._hvd.Sum), array)

    def broadcast(self, array: np.ndarray) -> Run:
        return in_function(lambda x: self._hvd.broadcast(x, root_rank=ROOT_RANK), array)

    def alltoall(self, array: np.ndarray) -> Run:
        return in_function(lambda x: self._hvd.alltoall(x), array)
