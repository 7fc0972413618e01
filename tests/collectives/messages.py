"""What the tests of send and recv share: rings of messages, and how they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import ringar

WAYS = ("numpy", "eager", "graph")


def neighbors() -> tuple[int, int]:
    """The ranks after and before this one, in a ring."""
    rank, size = ringar.rank(), ringar.size()
    return (rank + 1) % size, (rank - 1) % size


def spec_of(array: np.ndarray, *axes: int) -> tf.TensorSpec:
    """What to receive an array with; its dimensions `axes` are None."""
    dims = [None if i in axes else dim for i, dim in enumerate(array.shape)]
    return tf.TensorSpec(dims, array.dtype)


def pass_on(
    way: str, arrays: Sequence[np.ndarray], specs: Sequence[tf.TensorSpec], **options: Any
) -> list[np.ndarray]:
    """Sends arrays to the next rank, in one of the ways to do so, and receives from the last."""
    after, before = neighbors()

    def exchange(*tensors: Any) -> list[tf.Tensor]:
        ringar.send(list(tensors), after, **options)
        received: list[tf.Tensor] = ringar.recv(list(specs), before, **options)
        return received

    if way == "numpy":
        return [tensor.numpy() for tensor in exchange(*arrays)]
    run = tf.function(exchange) if way == "graph" else exchange
    return [tensor.numpy() for tensor in run(*map(tf.constant, arrays))]
