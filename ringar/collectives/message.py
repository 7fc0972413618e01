"""The common part of `send` and `recv`: a message from one rank to another.

Tensors of one dtype travel in one message, as in a grouped collective. In a `tf.function` the ops
draw tickets in program order and wait without a thread (`tensors.issue`).
"""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any, SupportsIndex

from ringar import errors
from ringar.collectives import call as calls
from ringar.collectives.call import Call
from ringar.job import tensorflow
from ringar.job.process_sets import ProcessSet

MAX_DIMENSIONS = 8
"""The largest number of dimensions of an array in a message: Shape in tf_ops/engine/request.h."""

TAGS, RESERVED_TAGS = 1024, 4096
"""The numbers of tags of users and of pipelines: Spec in tf_ops/engine/spec.h."""


class Reserved(int):
    """A tag that no user can name, from -RESERVED_TAGS to -1."""


def begin(
    direction: str,
    argument: str,
    peer: SupportsIndex,
    process_set: ProcessSet | None,
    name: str | None,
    tag: SupportsIndex,
) -> Call:
    """Return a call for a message to or from `peer`, a rank of the process set.

    The call gets no number in its graph, since the two ranks may differ in their other messages.
    """
    call, ranks = calls.begin(direction, process_set, name or "")
    if not tensorflow.is_eager():
        _check_graph(call)
    count, me = ranks.size(), ranks.rank()
    if not isinstance(tag, Reserved) and not _is_whole(tag, TAGS):
        raise ValueError(
            f"`tag` must be a whole number from 0 to {TAGS - 1}. Received: tag={tag!r}"
        )
    if not _is_whole(peer, count) or peer == me:
        expected = (
            f"a rank of the process set from 0 to {count - 1}, and not this one ({me})"
            if count > 1
            else "another rank, of which this process set has none"
        )
        raise ValueError(f"`{argument}` must be {expected}. Received: {argument}={peer!r}")
    return dataclasses.replace(call, root=int(peer), tag=int(tag))


def _check_graph(call: Call) -> None:
    from ringar.collectives import compiled, order

    if compiled.is_compiling():
        raise errors.UnsupportedError(
            call.refusal(
                "a function that is not compiled", "one that is", "Leave it out of jit_compile."
            )
        )
    order.check_session_graph(call, has_result=call.collective == "recv")


def define(direction: str) -> None:
    """Tell TensorFlow, once it is there, that a message has no gradient."""

    def register() -> None:
        for form in ("", "Async"):
            tensorflow.load().no_gradient(f"Ringar{direction.capitalize()}{form}")

    tensorflow.when_loaded(f"gradient of {direction}", register)


def _is_whole(value: SupportsIndex, end: int) -> bool:
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_integer and 0 <= int(value) < end


def check_dimensions(argument: str, shape: Any) -> None:
    """Refuse an array with more dimensions than a message can describe."""
    dimensions = shape.rank if hasattr(shape, "rank") else len(shape)
    if dimensions is not None and dimensions > MAX_DIMENSIONS:
        raise ValueError(
            f"`{argument}` must have at most {MAX_DIMENSIONS} dimensions each. "
            f"Received: shape={shape}"
        )
