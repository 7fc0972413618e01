"""Recv: a rank receives tensors from another rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from ringar.collectives import call as calls
from ringar.collectives import message
from ringar.job import tensorflow
from ringar.job.process_sets import ProcessSet

if TYPE_CHECKING:
    import tensorflow as tf


@overload
def recv(
    specs: Sequence[tf.TensorSpec],
    source: int,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    tag: SupportsIndex = 0,
) -> list[tf.Tensor]: ...


@overload
def recv(
    specs: tf.TensorSpec,
    source: int,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    tag: SupportsIndex = 0,
) -> tf.Tensor: ...


def recv(
    specs: tf.TensorSpec | Sequence[tf.TensorSpec],
    source: int,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    tag: SupportsIndex = 0,
) -> tf.Tensor | list[tf.Tensor]:
    """Receive tensors from another rank, which calls `ringar.send`.

    The n-th message from a rank with a tag goes to the n-th `recv` from it with that tag. In a
    `tf.function` a waiting `recv` delays only the ops that need its result, and later messages of
    the same stream.

    Args:
        specs: the `tf.TensorSpec` of the expected tensor, or a list of them, one for each tensor
            of the message. Dimensions may be None; their number must be known, and at most 8.
        source: the sender's rank in the process set; another rank than this one.
        name: in errors and timelines; must be equal on both ranks.
        process_set: the set in which `source` is a rank; default all. Must be the same on both
            ranks.
        tag: the stream; see `ringar.send`.

    Returns:
        A TensorFlow tensor, or a list of them.

    Raises:
        MismatchError: the message has another dtype, number of tensors, shape, name or process set.
            The message is dropped, and the sender gets the error at a later send to this rank;
            see `ringar.send`. (An `InvalidArgumentError`, as for collectives on tensors.)
        ValueError: `source` is no other rank of the process set, or a spec is no `tf.TensorSpec`.
        UnsupportedError: in a function that is compiled (`jit_compile=True`), or for strings.
        DeadlineError: the sender did not send in time.
        PeerLostError: the sender died or left. Its earlier messages still arrive (between hosts,
            a long message must arrive within half a second).

    Example:
        See `ringar.send`.
    """
    from ringar.collectives.tensors import issue

    call = message.begin("recv", "source", source, process_set, name, tag)
    several = isinstance(specs, (list, tuple))
    expected = [_checked(spec) for spec in (specs if several else [specs])]
    received: list[Any] = [None] * len(expected)
    for places in calls.by_dtype(spec.dtype for spec in expected):
        group = [expected[i] for i in places]
        shapes = [[-1 if d is None else d for d in spec.shape.as_list()] for spec in group]
        outputs = issue(
            "recv",
            wait=tensorflow.is_eager(),
            spec=call.spec(group[0].dtype.name, shapes),
            T=group[0].dtype,
            N=len(group),
        )
        for place, output in zip(places, outputs, strict=True):
            if not tensorflow.is_eager():
                output.set_shape(expected[place].shape)
            received[place] = output
    return received if several else received[0]


def _checked(spec: object) -> tf.TensorSpec:
    if not isinstance(spec, tensorflow.load().TensorSpec) or spec.shape.rank is None:
        raise ValueError(
            "`specs` must be a tf.TensorSpec of a known number of dimensions, or a list of them. "
            f"Received: {spec!r}"
        )
    message.check_dimensions("specs", spec.shape)
    return spec


message.define("recv")
