"""What a call of a tf.function costs that holds one small op and communicates nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.ringar_peer import REQUIREMENTS, RingarPeer, command  # noqa: F401
from benchmarks.traced import in_function

TITLE = "x + x in tf.function, no communication"
COMMUNICATES = False


class Peer(RingarPeer):
    def allreduce(self, array: np.ndarray) -> Callable[[], Any]:
        return in_function(lambda x: x + x, array)

    allgather = reducescatter = broadcast = alltoall = allreduce
