"""ringar's engine, called with NumPy arrays: no TensorFlow op in between."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.ringar_peer import REQUIREMENTS, RingarPeer, command, repeated  # noqa: F401
from ringar.collectives.call import Call

TITLE = "ringar (engine)"


class Peer(RingarPeer):
    def allreduce(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        result = np.empty_like(array)
        return repeated(Call("allreduce"), [array], [result], result)
