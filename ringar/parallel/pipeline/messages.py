"""The messages of a module: streams of their own, one message per batch and cut.

A stream holds two messages that are not yet received (`ringar.send`). With
`decoupled`, two gradients are in it when a module and the previous one have done their last steps.
With more messages per batch, modules that have stopped would wait for each other. Tensors of
several dtypes are therefore sent together, as bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ringar import errors
from ringar.collectives.message import RESERVED_TAGS, Reserved
from ringar.collectives.recv import recv
from ringar.collectives.send import send
from ringar.job import native, place

_BYTES = tf.TensorSpec([None], tf.uint8)
_WHAT = "messages between the ranks of a model"  # of a pipeline or a wavefront

# The last tag, and its session of ringar.init().
_last: tuple[native.Config | None, int] = None, 0


class Messages:
    """Send and receive messages with a tag of their own, from now until `ringar.shutdown`.

    All ranks of the job make their `Messages` in the same order: the n-th ones belong together.
    `Messages` without other ranks are not counted. Messages that were not received are forgotten
    when their `Messages` object is garbage.

    Args:
        ranks: the ranks, in the job, from which messages may come.

    Raises:
        UnsupportedError: there are no tags left.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        global _last
        self._session = place.require(_WHAT)
        self._tag = Reserved(0)
        if not ranks:  # one rank may then make them by itself
            return
        number = 1 + (_last[1] if _last[0] is self._session else 0)
        if number > RESERVED_TAGS:
            raise errors.UnsupportedError(
                f"expected at most {RESERVED_TAGS} compiled pipelines and built wavefronts "
                "after ringar.init(); received one more. Call ringar.shutdown() and ringar.init() "
                "first."
            )
        _last = self._session, number
        self._tag = Reserved(-number)
        weakref.finalize(self, _forget, self._session, ranks, number).atexit = False

    @property
    def are_current(self) -> bool:
        """Whether they were made after the last `ringar.init`."""
        return place.require(_WHAT) is self._session

    def send(self, tensors: Sequence[tf.Tensor], to: int, name: str) -> None:
        """Send tensors of any dtypes in one message."""
        if len({tensor.dtype for tensor in tensors}) == 1:
            return send(list(tensors), to, name=name, tag=self._tag)
        shapes = np.array([dim for tensor in tensors for dim in tensor.shape], np.int64)
        header = tf.constant(shapes.view(np.uint8), tf.uint8)
        return send([header, *map(_as_bytes, tensors)], to, name=name, tag=self._tag)

    def recv(self, specs: Sequence[tf.TensorSpec], source: int, name: str) -> list[tf.Tensor]:
        """Receive tensors from `send`.

        Args:
            specs: the specs of the tensors; dimensions may be None.
            source: the sender's rank.
            name: the name of the message.
        """
        received: list[tf.Tensor]
        if len({spec.dtype for spec in specs}) == 1:
            received = recv(list(specs), source, name=name, tag=self._tag)
            return received
        header, *parts = recv([_BYTES] * (len(specs) + 1), source, name=name, tag=self._tag)
        dims = list(header.numpy().view(np.int64))
        received = []
        for spec, part in zip(specs, parts, strict=True):
            shape = [dims.pop(0) for _ in range(spec.shape.rank)]
            received.append(tf.reshape(_of_bytes(part, spec.dtype), shape))
        return received


def _forget(session: native.Config, ranks: Sequence[int], number: int) -> None:
    if place.is_initialized() and place.require(_WHAT) is session:
        for rank in ranks:
            native.forget_messages(rank, -number)


def _as_bytes(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype == tf.bool:
        tensor = tf.cast(tensor, tf.uint8)
    return tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])


def _of_bytes(data: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype == tf.bool:
        return tf.cast(data, tf.bool)
    return tf.bitcast(data if dtype.size == 1 else tf.reshape(data, [-1, dtype.size]), dtype)
