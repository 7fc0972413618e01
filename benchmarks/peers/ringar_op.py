"""ringar's TensorFlow op inside a tf.function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ringar
from benchmarks.harness.definitions import ROOT_RANK
from benchmarks.harness.traced import in_function
from benchmarks.peers.ringar_peer import REQUIREMENTS, RingarPeer, command  # noqa: F401

TITLE = "ringar (op in tf.function)"
Run = Callable[[], Any]


class Peer(RingarPeer):
    def allreduce(self, array: np.ndarray) -> Run:
        return in_function(lambda x: ringar.allreduce(x, ringar.Sum), array)

    def allgather(self, array: np.ndarray) -> Run:
        return in_function(lambda x: ringar.allgather(x), array)

    def reducescatter(self, array: np.ndarray) -> Run:
        return in_function(lambda x: ringar.reducescatter(x, ringar.Sum), array)

    def broadcast(self, array: np.ndarray) -> Run:
        return in_function(lambda x: ringar.broadcast(x, ROOT_RANK), array)

    def alltoall(self, array: np.ndarray) -> Run:
        return in_function(lambda x: ringar.alltoall(x), array)
