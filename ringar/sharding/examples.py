"""The check that the ranks of a model group get the same examples.

A layer that reads the model's input keeps a digest of its first batch in a variable. After that
step the callback compares the digests. Without the check, a step with different examples would
compute wrong results on all ranks of the group, without an error.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from ringar.collectives import allgather
from ringar.errors import MismatchError
from ringar.sharding.grid import Grid


class Digest:
    """Compute a digest of the first batch that a layer sees since `reset`."""

    def __init__(self) -> None:
        with tf.init_scope():
            self._value = tf.Variable(0, trainable=False, dtype=tf.int32, name="ringar_digest")

    def take(self, x: tf.Tensor) -> None:
        """Compute the digest of a batch, if it is the first one."""

        def note() -> tf.Tensor:
            bits = tf.reshape(tf.bitcast(tf.cast(x, tf.float32), tf.int32), [-1])
            factors = 2 * tf.range(tf.size(bits)) + 1  # so that the order matters
            # 0 means that there is no digest.
            return self._value.assign(tf.reduce_sum(bits * factors) | 1)

        if self._value is not None:
            tf.cond(tf.equal(self._value, 0), note, lambda: self._value.read_value())

    def reset(self) -> None:
        """Forget the digest."""
        self._value.assign(0)

    @property
    def value(self) -> int:
        """The digest; 0 if no batch was seen."""
        return int(self._value.numpy())


def check(digests: list[tuple[str, Digest]], grid: Grid) -> None:
    """Compare the digests within each model group. Collective over all ranks.

    Args:
        digests: names of layers and their digests; the same layers on every rank.
        grid: the grid of the layers.

    Raises:
        MismatchError: on every rank of the job, if ranks of a group differ.
    """
    if grid.model == 1 or not digests:
        return
    digests_here = np.array([[digest.value for _, digest in digests]], np.int64)
    everyone = np.asarray(allgather(digests_here, name="examples"))
    for d in range(grid.data):
        group = everyone[d * grid.model : (d + 1) * grid.model]
        if (group != group[0]).any():
            layer = digests[int(np.flatnonzero((group != group[0]).any(axis=0))[0])][0]
            ranks = range(d * grid.model, (d + 1) * grid.model)
            raise refusal(f"in layer {layer}, batches", [int(row[0]) for row in group], ranks)


def refusal(received: str, digests: Iterable[int], ranks: Iterable[int]) -> MismatchError:
    """Return the error for ranks that got different examples.

    Args:
        received: the name of the data that differ.
        digests: the digest of each rank.
        ranks: the ranks of the job that the digests belong to.
    """
    by_rank = ", ".join(
        f"{digest & 0xFFFFFFFF:08x} (rank {rank})"
        for digest, rank in zip(digests, ranks, strict=True)
    )
    return MismatchError(
        f"The examples must be the same on every rank of a model group. Received: {received} with "
        f"the digests {by_rank}. Share the data with ringar.data.shard(dataset, grid=grid), "
        "shuffle with a seed, and augment before the model."
    )
