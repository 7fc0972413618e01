"""TensorFlow's own collectives (CollectiveReduceV2 over gRPC), what tf.distribute uses on CPUs.

It offers a replica an all-reduce and an all-gather, and no other collective.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.launch import plain as command  # noqa: F401

TITLE = "TensorFlow collectives"
REQUIREMENTS: tuple[str, ...] = ()
Run = Callable[[], Any]


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

    def _run(self, in_replica: Callable[[Any, Any], Any], array: np.ndarray) -> Run:
        tf, strategy = self._tf, self._strategy
        tensor = tf.constant(array)

        def run_in_replica(x: Any) -> Any:
            # The identity puts the tensor on the replica's device, which an argument is not on.
            return in_replica(tf.distribute.get_replica_context(), tf.identity(x))

        @tf.function
        def function(x: Any) -> Any:
            return strategy.run(run_in_replica, (x,))

        return lambda: function(tensor)

    def allreduce(self, array: np.ndarray) -> Run:
        reduce_op = self._tf.distribute.ReduceOp.SUM
        return self._run(lambda context, x: context.all_reduce(reduce_op, x), array)

    def allgather(self, array: np.ndarray) -> Run:
        return self._run(lambda context, x: context.all_gather(x, axis=0), array)
