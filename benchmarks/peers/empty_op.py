"""What a call of a tf.function costs whose one op does nothing: the floor for ringar's op.

DebugIdentityV2 without debuggers passes its input on: stateful, so that nothing optimizes it away,
and without a copy. Measured on two ranks, 4 KiB, in turn: 78 us; identity and x + x 79 us, DeepCopy
and Snapshot 83 us, ringar's own op among one rank 80 us. So it is the call that costs, not the op:
TensorFlow hands the function to a thread of its pool and waits. An op that exchanges something can
be faster than this one (59 us), since its wait for the peer gives the core back to the caller; the
fastest single call of this one is therefore kept, too, as the harder floor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.traced import in_function
from benchmarks.peers.ringar_peer import REQUIREMENTS, RingarPeer, command  # noqa: F401

TITLE = "empty op in tf.function, no communication"
COMMUNICATES = False


def nothing(tensor: Any) -> Any:
    import tensorflow as tf

    return tf.raw_ops.DebugIdentityV2(input=tensor)


class Peer(RingarPeer):
    def allreduce(self, array: np.ndarray) -> Callable[[], Any]:
        return in_function(nothing, array)

    allgather = reducescatter = broadcast = alltoall = allreduce
