"""ringar's TensorFlow op inside a tf.function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import ringar
from benchmarks.ringar_peer import REQUIREMENTS, RingarPeer, command  # noqa: F401

TITLE = "ringar (op in tf.function)"


class Peer(RingarPeer):
    def allreduce(self, array: np.ndarray) -> Callable[[], Any]:
        tensor = tf.constant(array)
        function = tf.function(lambda x: ringar.allreduce(x, ringar.Sum))
        concrete = function.get_concrete_function(tensor)
        return lambda: concrete(tensor)
