"""Horovod's allreduce in a tf.function, where Horovod is installed beside TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.launch import horovodrun as command  # noqa: F401

TITLE = "Horovod"
REQUIREMENTS: tuple[str, ...] = ()


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

    def allreduce(self, array: np.ndarray) -> Callable[[], Any]:
        import tensorflow as tf

        tensor = tf.constant(array)
        function = tf.function(lambda x: self._hvd.allreduce(x, op=self._hvd.Sum))
        return lambda: function(tensor)
