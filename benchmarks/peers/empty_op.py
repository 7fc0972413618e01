"""What a call of a tf.function costs that holds one small op and communicates nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.ringar_peer import REQUIREMENTS, RingarPeer, command  # noqa: F401

TITLE = "x + x in tf.function, no communication"
COMMUNICATES = False


class Peer(RingarPeer):
    def allreduce(self, array: np.ndarray) -> Callable[[], Any]:
        tensor = tf.constant(array)
        function = tf.function(lambda x: x + x).get_concrete_function(tensor)
        return lambda: function(tensor)
