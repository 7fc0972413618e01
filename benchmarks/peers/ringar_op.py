"""ringar's TensorFlow op inside a tf.function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import ringar
from benchmarks.launch import ringarrun as command  # noqa: F401

TITLE = "ringar (op in tf.function)"
REQUIREMENTS: tuple[str, ...] = ()


class Peer:
    def __init__(self) -> None:
        ringar.init()
        self.rank, self.size = ringar.rank(), ringar.size()

    def barrier(self) -> None:
        ringar.barrier()

    def allreduce(self, array: np.ndarray) -> Callable[[], Any]:
        tensor = tf.constant(array)
        function = tf.function(lambda x: ringar.allreduce(x, ringar.Sum)).get_concrete_function(
            tensor
        )
        return lambda: function(tensor)
