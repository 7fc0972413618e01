"""What sending and receiving have in common: a message from one rank to another.

Tensors of one dtype travel in one message, as those of a grouped collective do. In a
`tf.function` the ops are announced in the order of the program and wait without a thread
(`collective.issue`).
"""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any

import tensorflow as tf

from ringar import errors
from ringar.collectives import call as calls
from ringar.collectives import compiled
from ringar.collectives.call import Call
from ringar.job.process_sets import ProcessSet

MOST_DIMENSIONS = 8
"""That an array of a message has: see Shape in tf_ops/engine/request.h."""


def begin(
    direction: str, argument: str, peer: Any, process_set: ProcessSet | None, name: str | None
) -> Call:
    """Return a call for a message to or from `peer`, a rank of the process set.

    It has no number in its graph: the two ranks may send and receive different things besides.
    """
    call, ranks = calls.begin(direction, process_set, name or "")
    if compiled.is_compiling():
        raise errors.UnsupportedError(
            call.refusal(
                "a function that is not compiled",
                "one that is",
                "Leave it out of jit_compile.",
            )
        )
    count, me = ranks.size(), ranks.rank()
    whole = isinstance(peer, numbers.Integral) and not isinstance(peer, bool)
    if not whole or not 0 <= int(peer) < count or peer == me:
        others = (
            f"a rank of the process set from 0 to {count - 1}, and not this one ({me})"
            if count > 1
            else "another rank, of which this process set has none"
        )
        raise ValueError(f"`{argument}` must be {others}. Received: {argument}={peer!r}")
    return dataclasses.replace(call, root=int(peer))


def check_dimensions(argument: str, shape: tf.TensorShape) -> None:
    """Refuse arrays that a message cannot describe."""
    if shape.rank is not None and shape.rank > MOST_DIMENSIONS:
        raise ValueError(
            f"`{argument}` must have at most {MOST_DIMENSIONS} dimensions each. "
            f"Received: shape={shape}"
        )
