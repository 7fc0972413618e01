"""TensorFlow's own collectives (CollectiveReduceV2 over gRPC), what tf.distribute uses on CPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.launch import plain as command  # noqa: F401

TITLE = "TensorFlow collectives"
REQUIREMENTS: tuple[str, ...] = ()


class Peer:
    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        ports = os.environ["BENCH_PORTS"].split(",")
        os.environ["TF_CONFIG"] = json.dumps(
            {
                "cluster": {"worker": [f"localhost:{port}" for port in ports]},
                "task": {"type": "worker", "index": self.rank},
            }
        )
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        self._tf = tf
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
        self.version = f"tensorflow {tf.__version__}"

    def barrier(self) -> None:
        self.allreduce(np.zeros(1, np.float32))()

    def allreduce(self, array: np.ndarray) -> Callable[[], Any]:
        tf, strategy = self._tf, self._strategy
        tensor = tf.constant(array)

        def in_replica(x: Any) -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, x)

        @tf.function
        def function(x: Any) -> Any:
            return strategy.run(in_replica, (x,))

        return lambda: function(tensor)
