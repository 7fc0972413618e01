"""Recv: one rank gets tensors from another one."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringar.collectives import call as calls
from ringar.collectives import message
from ringar.collectives.collective import issue
from ringar.job.process_sets import ProcessSet


@calls.do_not_convert
def recv(
    specs: Any, source: int, *, name: str | None = None, process_set: ProcessSet | None = None
) -> Any:
    """Receive tensors from another rank, which calls `ringar.send`.

    The n-th message from a rank goes to the n-th `recv` from it. In a `tf.function` the wait
    holds up nothing but what needs the result, and later messages from the same rank.

    Args:
        specs: a `tf.TensorSpec` of what is expected, or a list of them, as many as were sent
            together. Dimensions may be None; their number must be known, and at most 8.
        source: the sender's rank in the process set, not this one.
        name: in errors and timelines; must be equal on both ranks.
        process_set: the set in which `source` is a rank; default all. Must be the same on both
            ranks.

    Returns:
        A TensorFlow tensor, or a list of them.

    Raises:
        MismatchError: the message has another dtype, number of tensors, shape, name or process set.
            It is dropped, and the sender gets the error, too, at a later send to this rank; see
            `ringar.send`. (An `InvalidArgumentError`, as for collectives on tensors.)
        ValueError: `source` is no other rank of the process set, or a spec is none.
        UnsupportedError: in a function that is compiled (`jit_compile=True`), or for strings.
        DeadlineError: the sender did not send in time.
        PeerLostError: the sender died or left. What it has sent before is still received (between
            hosts: a long message within half a second).

    Example:
        See `ringar.send`.
    """
    call = message.begin("recv", "source", source, process_set, name)
    several = isinstance(specs, (list, tuple))
    wanted = [_checked(spec) for spec in (specs if several else [specs])]
    received: list[Any] = [None] * len(wanted)
    for places in calls.by_dtype(spec.dtype for spec in wanted):
        group = [wanted[i] for i in places]
        shapes = [[-1 if d is None else d for d in spec.shape.as_list()] for spec in group]
        outputs = issue(
            "recv",
            wait=tf.executing_eagerly(),
            spec=call.spec(group[0].dtype.name, shapes),
            T=group[0].dtype,
            N=len(group),
        )
        for place, output in zip(places, outputs, strict=True):
            if not tf.executing_eagerly():
                output.set_shape(wanted[place].shape)
            received[place] = output
    return received if several else received[0]


def _checked(spec: Any) -> tf.TensorSpec:
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        raise ValueError(
            "`specs` must be a tf.TensorSpec of a known number of dimensions, or a list of them. "
            f"Received: {spec!r}"
        )
    message.check_dimensions("specs", spec.shape)
    return spec


tf.no_gradient("RingarRecv")
tf.no_gradient("RingarRecvAsync")
