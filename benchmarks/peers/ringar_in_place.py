"""ringar's engine with the result in the place of the input, as TensorFlow hands gradients over."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.peers.ringar_peer import REQUIREMENTS, RingarPeer, command, in_engine  # noqa: F401

TITLE = "ringar (engine, in place)"
IN_PLACE = True


class Peer(RingarPeer):
    def allreduce(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        return in_engine([array], [array], array, "allreduce")
