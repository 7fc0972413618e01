"""One message per batch and cut, whatever the dtypes of the tensors.

A stream between two ranks holds two messages that are not yet received (`ringar.send`). With
`decoupled`, two gradients are in it when a module and the previous one have done their last steps.
With more messages per batch, modules that have stopped would wait for each other. Tensors of
several dtypes are therefore sent together, as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ringar.collectives.recv import recv
from ringar.collectives.send import send

_BYTES = tf.TensorSpec([None], tf.uint8)


def send_together(tensors: Sequence[tf.Tensor], to: int, name: str) -> None:
    """Send tensors of any dtypes in one message."""
    if len({tensor.dtype for tensor in tensors}) == 1:
        return send(list(tensors), to, name=name)
    shapes = np.array([dim for tensor in tensors for dim in tensor.shape], np.int64)
    header = tf.constant(shapes.view(np.uint8), tf.uint8)
    return send([header, *map(_as_bytes, tensors)], to, name=name)


def recv_together(specs: Sequence[tf.TensorSpec], source: int, name: str) -> list[tf.Tensor]:
    """Receive tensors from `send_together`.

    Args:
        specs: the specs of the tensors; dimensions may be None.
        source: the sender's rank.
        name: the name of the message.
    """
    received: list[tf.Tensor]
    if len({spec.dtype for spec in specs}) == 1:
        received = recv(list(specs), source, name=name)
        return received
    header, *parts = recv([_BYTES] * (len(specs) + 1), source, name=name)
    dims = list(header.numpy().view(np.int64))
    received = []
    for spec, part in zip(specs, parts, strict=True):
        shape = [dims.pop(0) for _ in range(spec.shape.rank)]
        received.append(tf.reshape(_of_bytes(part, spec.dtype), shape))
    return received


def _as_bytes(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype == tf.bool:
        tensor = tf.cast(tensor, tf.uint8)
    return tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])


def _of_bytes(data: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype == tf.bool:
        return tf.cast(data, tf.bool)
    return tf.bitcast(data if dtype.size == 1 else tf.reshape(data, [-1, dtype.size]), dtype)
